//! The options of a mount: those of nfs(5) and mount(8), with the same names, units and defaults,
//! and Curt's own.
//!
//! `table` has a row for each option with its treatment; none is ignored silently, except those
//! that mount(8) reads itself. [`parse()`] converts an option string into [`Settings`] and remarks
//! for the user.

mod format;
mod parse;
mod remount;
mod settings;
mod source;
mod table;
mod value_syntax;

pub use format::{format_options, format_utab_options};
pub use parse::{
    OptionDiagnostic, OptionError, OptionWord, ParsedOptions, of_linux, parse, parse_onto, split,
};
pub use remount::remounted;
pub use settings::{
    AllowedUsers, Atime, CallbackPorts, FigureSettings, GenericSettings, LocalLocks, LockSettings,
    MemorySettings, NfsVersion, SecurityFlavor, ServerSettings, Settings, TransportSettings,
};
pub use source::{MountSource, MountSourceError};
pub use table::{OptionArity, OptionRow, OptionTreatment, TABLE, own};

pub(crate) use table::HANDOFFS_MAX;

#[cfg(test)]
mod tests;
