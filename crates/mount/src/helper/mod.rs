//! The interface of a mount helper to mount(8) and its users: arguments, exit statuses, phrases,
//! and utab.

mod arguments;
mod exit;
pub(crate) mod mountinfo;
mod utab;

pub use arguments::{HelperArguments, HelperArgumentsError};
pub use exit::{ExitStatus, MountFailure};
pub use mountinfo::{MountinfoLine, mounted_at};
pub use utab::{Utab, UtabEntry};
