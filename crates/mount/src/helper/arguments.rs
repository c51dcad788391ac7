//! The arguments of `/sbin/mount.curt` from mount(8): `SOURCE DIR [-sfnvrwh] [-N NAMESPACE] [-t
//! TYPE] [-o OPTIONS]`.

use std::ffi::OsString;
use std::path::PathBuf;

use thiserror::Error;

/// The arguments of a helper.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HelperArguments {
    /// `server:/path`.
    pub source: String,
    /// The mount point.
    pub target: PathBuf,
    /// All `-o` values, joined.
    pub options: String,
    /// `-f`: check everything, mount nothing.
    pub fake: bool,
    /// `-n`: do not write /run/mount/utab.
    pub no_table: bool,
    /// `-v`: verbose.
    pub verbose: bool,
    /// `-N`: the mount namespace (a path, or a process id).
    pub namespace: Option<String>,
    /// `-h`: print the usage only.
    pub help: bool,
    /// `-V`: print the version only.
    pub version: bool,
}

/// Why the arguments are invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HelperArgumentsError {
    /// An unknown option.
    #[error("unknown option '{0}'")]
    Unknown(String),
    /// An option without its value.
    #[error("option '{0}' needs a value")]
    NoValue(String),
    /// Source or directory are missing, or there is a third argument.
    #[error(
        "a helper takes a source and a directory: mount.curt SERVER:/PATH DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS]"
    )]
    Operands,
    /// A source or option that is not text.
    #[error("source and options must be UTF-8")]
    NotText,
}

impl HelperArguments {
    /// Parses the arguments after the program's name.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, HelperArgumentsError> {
        let mut parsed = Self::default();
        let mut operands = Vec::new();
        let mut words = arguments.into_iter();
        while let Some(word) = words.next() {
            match word.to_str() {
                Some(letters) if letters.len() > 1 && letters.starts_with('-') => {
                    parsed.letters(letters, &mut words)?;
                }
                _ => operands.push(word),
            }
        }
        if parsed.help || parsed.version {
            return Ok(parsed);
        }
        let [source, target] =
            <[OsString; 2]>::try_from(operands).map_err(|_| HelperArgumentsError::Operands)?;
        parsed.source = source.into_string().map_err(|_| HelperArgumentsError::NotText)?;
        parsed.target = PathBuf::from(target);
        Ok(parsed)
    }

    /// Parses a word of single-letter options; a value may be in the same word or the next.
    fn letters(
        &mut self,
        word: &str,
        rest: &mut impl Iterator<Item = OsString>,
    ) -> Result<(), HelperArgumentsError> {
        for (position, letter) in word.char_indices().skip(1) {
            match letter {
                's' => self.option("sloppy"),
                'f' => self.fake = true,
                'n' => self.no_table = true,
                'v' => self.verbose = true,
                'r' => self.option("ro"),
                'w' => self.option("rw"),
                'h' => self.help = true,
                'V' => self.version = true,
                'o' | 'N' | 't' => {
                    let here = &word[position + 1..];
                    let value = if here.is_empty() {
                        let value =
                            rest.next().ok_or_else(|| HelperArgumentsError::NoValue(format!("-{letter}")))?;
                        value.into_string().map_err(|_| HelperArgumentsError::NotText)?
                    } else {
                        here.to_owned()
                    };
                    match letter {
                        'o' => self.option(&value),
                        'N' => self.namespace = Some(value),
                        _ => {} // The type is ours, or mount(8) would not have called us.
                    }
                    return Ok(());
                }
                _ => return Err(HelperArgumentsError::Unknown(word.to_owned())),
            }
        }
        Ok(())
    }

    fn option(&mut self, words: &str) {
        if !self.options.is_empty() && !words.is_empty() {
            self.options.push(',');
        }
        self.options.push_str(words);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use super::{HelperArguments, HelperArgumentsError};

    fn parse(words: &str) -> Result<HelperArguments, HelperArgumentsError> {
        HelperArguments::parse(words.split_whitespace().map(Into::into))
    }

    #[test]
    fn arguments_of_mount_8_are_understood_in_any_order() {
        let parsed =
            parse("nas:/export /mnt -o rw,noaccesscheck -sfnv -N /proc/7/ns/mnt -t fuse.curt").unwrap();
        assert_eq!((parsed.source.as_str(), parsed.target.to_str()), ("nas:/export", Some("/mnt")));
        assert_eq!(parsed.options, "rw,noaccesscheck,sloppy");
        assert!(parsed.fake && parsed.no_table && parsed.verbose);
        assert_eq!(parsed.namespace.as_deref(), Some("/proc/7/ns/mnt"));
        assert_eq!(parse("-r -oacregmin=1 -w nas:/ /mnt").unwrap().options, "ro,acregmin=1,rw");
    }

    #[test]
    fn wrong_arguments_are_named() {
        assert_eq!(parse("nas:/ /mnt -q"), Err(HelperArgumentsError::Unknown("-q".to_owned())));
        assert_eq!(parse("nas:/ /mnt -o"), Err(HelperArgumentsError::NoValue("-o".to_owned())));
        assert_eq!(parse("nas:/"), Err(HelperArgumentsError::Operands));
        assert_eq!(parse("nas:/ /mnt more"), Err(HelperArgumentsError::Operands));
        assert!(parse("-h").unwrap().help);
    }
}
