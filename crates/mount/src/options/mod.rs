//! The options of a mount: those of nfs(5) and mount(8), with the same names, units and defaults,
//! and Curt's own.
//!
//! `table.rs` has a row for each option and says how it is treated; none is ignored silently,
//! except those that mount(8) reads itself. [`parse`] turns an option string into [`Settings`] and
//! the remarks that a user should see.

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
    AllowedUsers, Atime, FigureSettings, GenericSettings, LocalLocks, MemorySettings, SecurityFlavor,
    ServerSettings, Settings, TransportSettings,
};
pub use source::{MountSource, MountSourceError};
pub use table::{TABLE, own};

use thiserror::Error;

/// Why an option string is refused; mount.nfs's phrase comes first, then the option and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OptionError {
    /// No row has this name.
    #[error(
        "an incorrect mount option was specified: {option}: unknown; see 'curt mount --help', or pass -s to ignore it"
    )]
    Unknown {
        /// The option as written.
        option: String,
    },
    /// The value is missing, not wanted, or out of its range.
    #[error("an incorrect mount option was specified: {option}: {wanted}")]
    Value {
        /// The option as written.
        option: String,
        /// What it takes.
        wanted: String,
    },
    /// The option asks for what Curt does not do.
    #[error("{option} is not supported: {instead}")]
    Refused {
        /// The option as written.
        option: String,
        /// What to do instead.
        instead: &'static str,
    },
}

/// What a user is told of an option that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// Ignored because it asks for what is the case anyway; reported at verbose level.
    Ignored {
        /// The option as written.
        option: String,
        /// Why it changes nothing.
        why: &'static str,
    },
    /// Accepted, but it differs from what the option means elsewhere.
    Warning {
        /// The option as written.
        option: String,
        /// What differs.
        differs: String,
    },
}

/// The result of parsing an option string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedOptions {
    /// The values.
    pub settings: Settings,
    /// What to tell the user.
    pub remarks: Vec<Remark>,
    /// The words that were honoured, in order, as `curt stat` and utab show them.
    pub honoured: Vec<OptionWord>,
}

/// Reads an option string onto the defaults. Later words win over earlier ones, as in nfs(5).
pub fn parse(options: &str) -> Result<ParsedOptions, OptionError> {
    parse_onto(Settings::default(), options)
}

/// Reads an option string onto settings that are in force: what `remount` does.
pub fn parse_onto(settings: Settings, options: &str) -> Result<ParsedOptions, OptionError> {
    let words = split(options);
    let mut parsed = ParsedOptions {
        settings,
        ..ParsedOptions::default()
    };
    // Wherever `sloppy` stands, it holds for the whole string.
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
        .map_err(|wanted| OptionError::Value {
            option: option.clone(),
            wanted: wanted.to_owned(),
        })?;
    match row.verdict {
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

/// Keeps a word that libmount, systemd or a desktop reads from the mount's line in utab (mount(8),
/// `_netdev` and `x-*`).
fn keep(kept: &mut Vec<String>, word: &OptionWord, text: String) {
    if word.name == "_netdev" || word.name.starts_with("x-") {
        kept.retain(|earlier| {
            split(earlier)
                .first()
                .is_none_or(|earlier| earlier.name != word.name)
        });
        kept.push(text);
    }
}

#[cfg(test)]
mod tests;
