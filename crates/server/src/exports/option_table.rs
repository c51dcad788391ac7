//! The options of exports(5): how each is treated, and its effect.

use super::Fsid;
use super::options::{FlavorOptions, MountPoint, Options};
use super::rules::CredentialFlavor;

/// The id that means "no change" to system calls.
const NO_ID: u32 = u32::MAX;

/// Warnings about an accepted option.
pub(super) type OptionWarning = Option<&'static str>;

/// Applies the options of one list in order.
pub(super) struct OptionListParser<'o> {
    options: &'o mut Options,
    /// The options before the first `sec=` of the list: the initial options of each flavour.
    before: FlavorOptions,
    /// The flavours to which options apply now; if there is none, they apply to all.
    current_flavors: Vec<CredentialFlavor>,
    /// Whether this list has named flavours, which then replace those of the line's defaults.
    has_sec: bool,
}

impl<'o> OptionListParser<'o> {
    pub(super) fn new(options: &'o mut Options) -> Self {
        Self { before: options.defaults, options, current_flavors: Vec::new(), has_sec: false }
    }

    /// Applies one option. An error contains the reason and the alternative.
    pub(super) fn take(&mut self, word: &[u8]) -> Result<OptionWarning, String> {
        let (name, value) = match word.iter().position(|byte| *byte == b'=') {
            Some(at) => (&word[..at], Some(&word[at + 1..])),
            None => (word, None),
        };
        let name = std::str::from_utf8(name).map_err(|_| "no such option".to_owned())?;
        match value {
            None => self.take_plain(name),
            Some(value) => self.take_valued(name, value).map(|()| None),
        }
    }

    fn take_plain(&mut self, name: &str) -> Result<OptionWarning, String> {
        let options = &mut *self.options;
        match name {
            "ro" => self.permit(|it| it.read_only = true),
            "rw" => self.permit(|it| it.read_only = false),
            "root_squash" => self.permit(|it| it.root_squash = true),
            "no_root_squash" => self.permit(|it| it.root_squash = false),
            "all_squash" => self.permit(|it| it.all_squash = true),
            "no_all_squash" => self.permit(|it| it.all_squash = false),
            "sync" => options.common.asynchronous = false,
            "async" => {
                options.common.asynchronous = true;
                return Ok(Some(
                    "changes are answered before they are on stable storage: when this machine stops, changes that \
                     clients take for stable may be lost, and no error reports that",
                ));
            }
            "secure" => options.common.secure_ports = true,
            "insecure" => options.common.secure_ports = false,
            "hide" => options.common.nohide = false,
            "nohide" => options.common.nohide = true,
            "crossmnt" => options.common.crossmnt = true,
            "nocrossmnt" | "no_crossmnt" => options.common.crossmnt = false,
            "subtree_check" => options.common.subtree_check = true,
            "no_subtree_check" => options.common.subtree_check = false,
            "nordirplus" => options.common.readdirplus = false,
            "mountpoint" | "mp" => options.mount_point = Some(MountPoint::Itself),
            "wdelay" | "no_wdelay" | "acl" | "no_acl" | "no_pnfs" => {}
            "secure_locks" | "auth_nlm" => options.common.insecure_locks = false,
            "insecure_locks" | "no_auth_nlm" => options.common.insecure_locks = true,
            other => return Err(refusal(other)),
        }
        Ok(None)
    }

    /// Sets an option that may differ between flavours: for those of the last `sec=`, or for all.
    fn permit(&mut self, change: impl Fn(&mut FlavorOptions)) {
        if self.current_flavors.is_empty() {
            change(&mut self.options.defaults);
            self.before = self.options.defaults;
            self.options.flavors.iter_mut().for_each(|(_, own)| change(own));
            return;
        }
        let about = &self.current_flavors;
        let flavors = self.options.flavors.iter_mut();
        flavors.filter(|(flavor, _)| about.contains(flavor)).for_each(|(_, own)| change(own));
    }

    fn take_valued(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(value).map_err(|_| "the value is not UTF-8".to_owned());
        match name {
            "anonuid" => self.options.common.anonymous_uid = id(text?)?,
            "anongid" => self.options.common.anonymous_gid = id(text?)?,
            "fsid" => self.options.fsid = Some(fsid(text?)?),
            "mountpoint" | "mp" if value.starts_with(b"/") => {
                self.options.mount_point = Some(MountPoint::At(value.to_vec()));
            }
            "mountpoint" | "mp" => {
                return Err("expected an absolute path, such as mountpoint=/srv/disk".into());
            }
            "sec" => self.take_flavors(text?)?,
            "xprtsec" => xprtsec(text?)?,
            other => return Err(refusal(other)),
        }
        Ok(())
    }

    fn take_flavors(&mut self, list: &str) -> Result<(), String> {
        if !std::mem::replace(&mut self.has_sec, true) {
            self.options.flavors.clear();
        }
        self.current_flavors.clear();
        for word in list.split(':') {
            let flavor = match word {
                "sys" => CredentialFlavor::Sys,
                "none" | "null" => CredentialFlavor::None,
                "krb5" | "krb5i" | "krb5p" => {
                    return Err("Kerberos is not supported by this version: use sec=sys".into());
                }
                _ => return Err("expected sec=sys, sec=none or sec=sys:none".into()),
            };
            self.current_flavors.push(flavor);
            if self.options.flavors.iter().all(|(own, _)| *own != flavor) {
                self.options.flavors.push((flavor, self.before));
            }
        }
        Ok(())
    }
}

fn xprtsec(list: &str) -> Result<(), String> {
    match list {
        "none" => Ok(()),
        _ if list.split(':').any(|word| matches!(word, "tls" | "mtls")) => {
            Err("RPC over TLS is not supported by this version: use xprtsec=none on a network that you trust"
                .into())
        }
        _ => Err("expected xprtsec=none".into()),
    }
}

/// Parses an id, which may be written as a negative number of 32 bits. The id that means "no
/// change" is refused.
fn id(text: &str) -> Result<u32, String> {
    let number: i64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    let id = match number {
        0.. => u32::try_from(number).ok(),
        _ => i32::try_from(number).ok().map(i32::cast_unsigned),
    };
    match id {
        Some(NO_ID) => Err("this number means \"no id\"; choose another".into()),
        Some(id) => Ok(id),
        None => Err("expected a number of 32 bits".into()),
    }
}

fn fsid(text: &str) -> Result<Fsid, String> {
    if text == "root" {
        return Ok(Fsid::Number(0));
    }
    if let Ok(number) = text.parse::<u32>() {
        return Ok(Fsid::Number(number));
    }
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let punctuated = text.chars().all(|it| it.is_ascii_hexdigit() || it.is_ascii_punctuation());
    let uuid = u128::from_str_radix(&digits, 16).ok().filter(|_| punctuated && digits.len() == 32);
    uuid.map(|uuid| Fsid::Uuid(uuid.to_be_bytes()))
        .ok_or_else(|| "expected a number of 32 bits, root, or a UUID".into())
}

/// Why an option is refused.
fn refusal(name: &str) -> String {
    match name {
        "pnfs" => "this server does not support pNFS: leave it out",
        "refer" | "replicas" => {
            "this server makes no referrals: export the directory itself"
        }
        "security_label" => "this server does not support security labels: leave it out",
        "reexport" => {
            "re-export with automatic fsid numbers is not supported: set fsid=, or export the directory on its own server"
        }
        "anonuid" | "anongid" => "expected a number after =",
        "fsid" => "expected a number, root, or a UUID after =",
        "sec" => "expected sec=sys, sec=none or sec=sys:none",
        _ => "no such option; `man 5 exports` lists them",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::exports::Squash;

    /// How an option is treated.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum OptionSupport {
        /// Works as in exports(5).
        Honoured,
        /// Accepted: it requests behaviour that the server always has.
        Accepted,
        /// An error; the text says what to use instead.
        Refused,
    }

    /// Every option, as it may be written, and its treatment.
    const OPTIONS: [(&str, OptionSupport); 54] = {
        use OptionSupport::{Accepted, Honoured, Refused};
        [
            ("ro", Honoured),
            ("rw", Honoured),
            ("sync", Honoured),
            ("async", Honoured),
            ("secure", Honoured),
            ("insecure", Honoured),
            ("wdelay", Accepted),
            ("no_wdelay", Accepted),
            ("root_squash", Honoured),
            ("no_root_squash", Honoured),
            ("all_squash", Honoured),
            ("no_all_squash", Honoured),
            ("anonuid=1000", Honoured),
            ("anongid=100", Honoured),
            ("hide", Honoured),
            ("nohide", Honoured),
            ("crossmnt", Honoured),
            ("nocrossmnt", Honoured),
            ("no_crossmnt", Honoured),
            ("subtree_check", Honoured),
            ("no_subtree_check", Honoured),
            ("fsid=7", Honoured),
            ("fsid=root", Honoured),
            ("fsid=0d5a8b04-6c3c-4b8e-9d7c-2f3f1f0d4e11", Honoured),
            ("mountpoint", Honoured),
            ("mountpoint=/mnt", Honoured),
            ("mp", Honoured),
            ("mp=/mnt", Honoured),
            ("nordirplus", Honoured),
            ("sec=sys", Honoured),
            ("sec=none", Honoured),
            ("sec=sys:none", Honoured),
            ("sec=krb5", Refused),
            ("sec=krb5i", Refused),
            ("sec=krb5p", Refused),
            ("xprtsec=none", Honoured),
            ("xprtsec=tls", Refused),
            ("xprtsec=mtls", Refused),
            ("acl", Accepted),
            ("no_acl", Accepted),
            ("secure_locks", Honoured),
            ("insecure_locks", Honoured),
            ("auth_nlm", Honoured),
            ("no_auth_nlm", Honoured),
            ("no_pnfs", Accepted),
            ("pnfs", Refused),
            ("refer=/path@host", Refused),
            ("replicas=/path@host", Refused),
            ("security_label", Refused),
            ("reexport=auto-fsidnum", Refused),
            ("fsid=num", Refused),
            ("anonuid=-1", Refused),
            ("mountpoint=relative", Refused),
            ("sec=", Refused),
        ]
    };

    fn taken(list: &str) -> Result<(Options, Vec<&'static str>), String> {
        let mut options = Options::default();
        let mut parser = OptionListParser::new(&mut options);
        let mut remarks = Vec::new();
        for word in list.split(',').filter(|word| !word.is_empty()) {
            remarks.extend(parser.take(word.as_bytes())?);
        }
        Ok((options, remarks))
    }

    /// Options with the opposite meaning, so that an option equal to a default is seen to be
    /// parsed.
    const OPPOSITES: &str =
        "insecure_locks,rw,async,insecure,no_root_squash,all_squash,nohide,crossmnt,subtree_check";

    #[test]
    fn each_word_has_the_support_that_the_table_says() {
        for (word, support) in OPTIONS {
            let alone = taken(word);
            let after = taken(&format!("{OPPOSITES},{word}"));
            let (opposites, _) = taken(OPPOSITES).unwrap();
            let changes = |taken: &Result<(Options, _), String>, before: &Options| {
                taken.as_ref().is_ok_and(|(options, _)| options != before)
            };
            match support {
                // `xprtsec=none` requests no transport security, and the server has none.
                OptionSupport::Honoured if word == "xprtsec=none" => assert!(alone.is_ok()),
                OptionSupport::Honoured => {
                    let effective = changes(&alone, &Options::default()) || changes(&after, &opposites);
                    assert!(effective, "{word} changes nothing");
                }
                OptionSupport::Accepted => assert_eq!(alone, Ok((Options::default(), vec![])), "{word}"),
                OptionSupport::Refused => assert!(alone.unwrap_err().len() > 15, "{word}"),
            }
        }
    }

    /// The page of the user's documentation.
    const DOCUMENTATION: &str = include_str!("../../../../docs/exports.md");

    #[test]
    fn the_page_of_options_has_every_word_with_its_fate_and_no_other() {
        let rows: Vec<(Vec<&str>, &str)> = DOCUMENTATION
            .lines()
            .skip_while(|line| *line != "| option | support | meaning |")
            .skip(2)
            .take_while(|line| line.starts_with('|'))
            .map(|line| {
                let mut cells = line.split('|').skip(1);
                let (words, support) = (cells.next().unwrap(), cells.next().unwrap());
                (words.split('`').skip(1).step_by(2).collect(), support.trim())
            })
            .collect();
        for (word, support) in OPTIONS {
            let row = rows.iter().find(|(words, _)| words.contains(&word));
            let name = format!("{support:?}").to_lowercase();
            assert_eq!(row.map(|(_, support)| *support), Some(name.as_str()), "{word}");
        }
        let known = |word: &&str| OPTIONS.iter().any(|(own, _)| own == word);
        let unknown: Vec<_> = rows.iter().flat_map(|(words, _)| words).filter(|word| !known(word)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn words_become_the_rules_they_name() {
        let rules = |list: &str| *taken(list).unwrap().0.rules().of(CredentialFlavor::Sys).unwrap();
        assert!(rules("").read_only && !rules("rw").read_only && rules("rw,ro").read_only);
        assert!(rules("").secure_ports && !rules("insecure").secure_ports);
        assert_eq!(rules("").squash, Squash::Root);
        assert_eq!(rules("no_root_squash").squash, Squash::None);
        assert_eq!(rules("no_root_squash,all_squash").squash, Squash::All);
        assert_eq!(rules("no_root_squash,all_squash,no_all_squash").squash, Squash::None);
        assert_eq!((rules("anonuid=5").anonymous_uid, rules("anongid=-2").anonymous_gid), (5, u32::MAX - 1));
        assert!(rules("async").asynchronous && rules("subtree_check").subtree_check);
        assert!(rules("nohide").nohide && rules("crossmnt").crossmnt && !rules("nordirplus").readdirplus);
        assert!(rules("no_auth_nlm").insecure_locks && !rules("insecure_locks,secure_locks").insecure_locks);
    }

    #[test]
    fn words_after_sec_are_about_its_flavours_alone() {
        let (options, _) = taken("no_root_squash,sec=sys,rw,sec=none,ro").unwrap();
        let rules = options.rules();
        let (sys, none) =
            (rules.of(CredentialFlavor::Sys).unwrap(), rules.of(CredentialFlavor::None).unwrap());
        assert!(!sys.read_only && none.read_only);
        assert_eq!((sys.squash, none.squash), (Squash::None, Squash::None));
        let (options, _) = taken("sec=sys").unwrap();
        assert_eq!(options.rules().of(CredentialFlavor::None), None);
        let (options, _) = taken("sec=none:sys,rw").unwrap();
        let rules = options.rules();
        assert!(
            !rules.of(CredentialFlavor::None).unwrap().read_only
                && !rules.of(CredentialFlavor::Sys).unwrap().read_only
        );
        assert_eq!(rules.flavors().next(), Some(CredentialFlavor::None));
    }

    #[test]
    fn values_are_held_to_their_ranges() {
        for good in ["anonuid=0", "anonuid=4294967294", "anonuid=-2", "fsid=4294967295", "fsid=0"] {
            assert!(taken(good).is_ok(), "{good}");
        }
        for bad in [
            "anonuid=4294967295",
            "anonuid=4294967296",
            "anonuid=-2147483649",
            "anonuid=",
            "anonuid",
            "fsid=4294967296",
            "fsid=0d5a8b04",
            "fsid=zz5a8b04-6c3c-4b8e-9d7c-2f3f1f0d4e11",
            "fsid",
            "sec",
            "sec=dh",
            "xprtsec=",
            "ro=1",
            "nothing",
            "no_subtree_check ",
        ] {
            assert!(taken(bad).is_err(), "{bad}");
        }
        assert_eq!(taken("fsid=root").unwrap().0.fsid, Some(Fsid::Number(0)));
    }
}
