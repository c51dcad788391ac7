//! The interface of a mount helper to mount(8) and its users: arguments, exit statuses, phrases,
//! and utab.

mod arguments;
mod exit;
mod utab;

pub use arguments::{HelperArguments, HelperArgumentsError};
pub use exit::{ExitStatus, MountFailure};
pub use utab::{Utab, UtabEntry};
