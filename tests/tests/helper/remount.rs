//! Effects of `remount`, and its errors.

use anyhow::{Result, ensure};
use curt_tests::process;

use crate::host::{Host, SHORT, with_ports};

#[test]
fn an_fstab_line_with_defaults_is_remounted_and_flags_go_both_ways() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    host.fstab(&with_ports("defaults,_netdev,noauto"))?;
    host.shell(&format!("mount {}", host.target()))?;
    let remounted = |options: &str, wanted: &[&str]| -> Result<()> {
        let curt = curt_tests::curt::program("curt")?.display().to_string();
        let done = host.run(&[&curt, "mount", &host.source(), host.target(), "-o", options])?;
        ensure!(done.status == Some(0), "{options}: {done:?}");
        let shown = host.column(&[], "OPTIONS")?;
        for option in wanted {
            ensure!(shown.split(',').any(|word| word == *option), "{options}: {option} is not in {shown}");
        }
        Ok(())
    };
    host.shell(&format!("mount -o remount,ro {}", host.target()))?;
    ensure!(host.column(&[], "OPTIONS")?.starts_with("ro,"));
    remounted("remount,defaults", &["rw", "relatime"])?;
    remounted("remount,noatime,noexec", &["noatime", "noexec"])?;
    remounted("remount,relatime,exec", &["relatime"])?;
    // A file that is open for writing keeps the mount writable.
    let curt = curt_tests::curt::program("curt")?.display().to_string();
    let script = format!(
        "exec 9>>{}; {curt} mount {} {} -o remount,ro",
        host.inside("hello"),
        host.source(),
        host.target()
    );
    let busy = host.run(&["bash", "-c", &script])?;
    ensure!(busy.status == Some(32) && busy.text.contains(&format!("{} is busy", host.target())), "{busy:?}");
    host.unmount()
}

#[test]
fn a_remount_invalidates_cached_names_of_the_kernel() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    let directory = host.export.join("old");
    host.shell(&format!("mkdir -m 755 {0}; touch -d '2 hours ago' {0}; sleep 0.1", directory.display()))?;
    host.mounted("noaccesscheck,actimeo=600,nametimeo=600,negnametimeo=600")?;
    let missing = host.inside("old/missing");
    // One LOOKUP to cache it, another because it was too recent; then it is cached.
    process::until("the name is kept", SHORT, || {
        let asked = host.sent("LOOKUP")?;
        ensure!(host.run(&["test", "-e", &missing])?.status == Some(1));
        Ok((asked > 0 && host.sent("LOOKUP")? == asked).then_some(()))
    })?;
    host.shell(&format!("touch {}", directory.join("missing").display()))?;
    ensure!(host.run(&["test", "-e", &missing])?.status == Some(1));
    host.shell(&format!("mount -o remount,nonegnamecache {}", host.target()))?;
    ensure!(host.run(&["test", "-e", &missing])?.status == Some(0));
    host.unmount()
}

// SEMANTICS: cto-6.
#[test]
fn with_noac_a_file_that_stays_open_is_read_as_others_left_it() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    host.mounted("noac")?;
    let program = "import os,sys
file = os.open(sys.argv[1], os.O_RDONLY)
seen = [os.pread(file, 6, 0)]
for text in b'second', b'third!':
    with open(sys.argv[2], 'r+b') as other: other.write(text)
    seen.append(os.pread(file, 6, 0))
print(seen)";
    let here = host.inside("hello");
    let there = host.export.join("hello").display().to_string();
    let done = host.run(&["python3", "-c", program, &here, &there])?;
    ensure!(done.text.trim() == r"[b'hello\n', b'second', b'third!']", "{done:?}");
    host.unmount()
}
