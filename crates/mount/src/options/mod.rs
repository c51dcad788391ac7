//! The options of a mount: those of nfs(5) and mount(8), with the same names, units and defaults,
//! and Curt's own.
//!
//! `table.rs` has a row for each option with its treatment; none is ignored silently, except those
//! that mount(8) reads itself. [`parse`] converts an option string into [`Settings`] and remarks
//! for the user.

mod format;
mod linux;
mod option_string;
mod remount;
mod row;
mod settings;
mod source;
mod table;
mod values;

pub use format::{format_options, format_utab_options};
pub use linux::of_linux;
pub use option_string::{OptionWord, split};
pub use remount::remounted;
pub use row::{OptionArity, OptionRow, OptionTreatment};
pub use settings::{
    AllowedUsers, Atime, FigureSettings, GenericSettings, LocalLocks, LockSettings, MemorySettings,
    SecurityFlavor, ServerSettings, Settings, TransportSettings,
};
pub use source::{MountSource, MountSourceError};
pub use table::{TABLE, own};

use thiserror::Error;

/// Why an option string is refused; mount.nfs's phrase first, then the option and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OptionError {
    /// Unknown option.
    #[error(
        "an incorrect mount option was specified: {option}: unknown; see 'curt mount --help', or pass -s to ignore it"
    )]
    Unknown {
        /// The option as written.
        option: String,
    },
    /// The value is missing, not allowed, or out of range.
    #[error("an incorrect mount option was specified: {option}: {wanted}")]
    Value {
        /// The option as written.
        option: String,
        /// The allowed values.
        wanted: String,
    },
    /// The option requests something that Curt does not support.
    #[error("{option} is not supported: {instead}")]
    Refused {
        /// The option as written.
        option: String,
        /// What to do instead.
        instead: &'static str,
    },
}

/// A remark for the user about an accepted option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// Ignored because Curt always behaves as it requests; reported at verbose level.
    Ignored {
        /// The option as written.
        option: String,
        /// Why it has no effect.
        why: &'static str,
    },
    /// Accepted, but with a different meaning than elsewhere.
    Warning {
        /// The option as written.
        option: String,
        /// The difference.
        differs: String,
    },
}

/// The result of parsing an option string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedOptions {
    /// The settings.
    pub settings: Settings,
    /// Remarks for the user.
    pub remarks: Vec<Remark>,
    /// The honoured options, in order, as `curt stat` and utab show them.
    pub honoured: Vec<OptionWord>,
}

/// Parses an option string onto the defaults. The last of contradicting options applies, as in
/// nfs(5).
pub fn parse(options: &str) -> Result<ParsedOptions, OptionError> {
    parse_onto(Settings::default(), options)
}

/// Parses an option string onto settings in force: `remount`.
pub fn parse_onto(settings: Settings, options: &str) -> Result<ParsedOptions, OptionError> {
    let words = split(options);
    let mut parsed = ParsedOptions { settings, ..ParsedOptions::default() };
    // `sloppy` applies to the whole string, wherever it is.
    parsed.settings.generic.sloppy |= words.iter().any(|word| word.name == "sloppy");
    for word in &words {
        absorb(&mut parsed, word)?;
    }
    Ok(parsed)
}

fn absorb(parsed: &mut ParsedOptions, word: &OptionWord) -> Result<(), OptionError> {
    let option = word.text();
    let Some(row) = table::find(word) else {
        if !parsed.settings.generic.sloppy {
            return Err(OptionError::Unknown { option });
        }
        let differs = "unknown, ignored because of 'sloppy'".to_owned();
        parsed.remarks.push(Remark::Warning { option, differs });
        return Ok(());
    };
    row.takes
        .check(word.value.as_deref())
        .map_err(|wanted| OptionError::Value { option: option.clone(), wanted: wanted.to_owned() })?;
    match row.treatment {
        OptionTreatment::Honoured(apply) => {
            let value = word.value.as_deref().unwrap_or_default();
            apply(&mut parsed.settings, value).map_err(|wanted| OptionError::Value { option, wanted })?;
            parsed.honoured.retain(|earlier| earlier.name != word.name);
            parsed.honoured.push(word.clone());
        }
        OptionTreatment::Passed => keep(&mut parsed.settings.passed_through, word, option),
        OptionTreatment::Ignored(why) => parsed.remarks.push(Remark::Ignored { option, why }),
        OptionTreatment::Refused(instead) => return Err(OptionError::Refused { option, instead }),
    }
    Ok(())
}

/// Keeps an option that libmount, systemd or a desktop reads from utab (mount(8), `_netdev` and
/// `x-*`).
fn keep(words_kept: &mut Vec<String>, word: &OptionWord, text: String) {
    if word.name == "_netdev" || word.name.starts_with("x-") {
        words_kept.retain(|earlier| split(earlier).first().is_none_or(|earlier| earlier.name != word.name));
        words_kept.push(text);
    }
}

#[cfg(test)]
mod tests;
