//! What mount(8) and its users expect of a mount helper: arguments, exit statuses, phrases, and the
//! table of options.

mod arguments;
mod exit;
mod mountinfo;
mod utab;

pub use arguments::{HelperArguments, HelperArgumentsError};
pub use exit::{ExitStatus, MountFailure};
pub(crate) use mountinfo::mounts;
pub use mountinfo::{MountinfoLine, mounted_at};
pub use utab::{Utab, UtabEntry};
