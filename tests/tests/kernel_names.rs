//! Names that the kernel keeps let nobody in who may not search their directory.

use std::time::Duration;

use anyhow::Result;
use curt_tests::curt::{CurtMount, CurtServe};
use curt_tests::network::Network;

const LIMIT: Duration = Duration::from_secs(120);

/// `$m` is a mount, `$s` the exported directory. `stranger` runs a command as user 2000, and
/// `is_refused` one that has to fail with EACCES.
const BEGIN: &str = r#"
    export LC_ALL=C
    stranger() { setpriv --reuid=2000 --regid=2000 --clear-groups "$@"; }
    is_refused() {
        if said=$(stranger "$@" 2>&1); then echo "$* is not refused"; return 1; fi
        [[ $said == *"Permission denied"* ]] || { echo "$*: $said"; return 1; }
    }
    makes() { mkdir -m 755 $m/$1 $m/$1/below; echo text >$m/$1/below/file; chmod 666 $m/$1/below/file; mkfifo -m 666 $m/$1/below/fifo; }
    knows() { for i in {1..20}; do stranger stat $m/$1/below/file $m/$1/below/fifo >/dev/null; stranger cat $m/$1/below/file >/dev/null; done; }
    is_all_refused() {
        is_refused stat $m/$1/below/file; is_refused cat $m/$1/below/file; is_refused cat $m/$1/below/fifo
        is_refused ls $m/$1/below
        is_refused touch $m/$1/below/file; is_refused truncate -s 0 $m/$1/below/file; is_refused mkdir $m/$1/below/new
        is_refused rm -f $m/$1/below/file; is_refused mv $m/$1/below/file $m/$1/below/other; is_refused ln $m/$1/below/file $m/other
        is_refused python3 -c "import os; os.open('$m/$1/below/file', os.O_PATH)"
    }
"#;

fn script(options: &str, text: &str) -> Result<()> {
    for access in ["accesscheck", "noaccesscheck"] {
        let network = Network::new()?;
        let export = network.make_directory("export")?;
        let server = CurtServe::start(&network, &export, &[])?;
        let options = format!("{},{access},{options}", server.ports());
        let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
        let places = format!("m={} s={}\nchmod 777 $m\n", mount.directory().display(), export.display());
        network.shell(&(places + BEGIN + text), LIMIT)?;
        mount.unmount()?;
    }
    Ok(())
}

// SEMANTICS: perm-7.
#[test]
fn after_a_directory_was_closed_here_nobody_else_sees_a_name_below() -> Result<()> {
    script(
        "kernelnames=2",
        r"
        makes one; knows one; chmod 700 $m/one; is_all_refused one
        makes two; knows two; chown 1000:1000 $m/two; chmod 711 $m/two; knows two; chmod 701 $m/two; chmod 600 $m/two
        is_all_refused two
        mkdir -m 700 $m/closed; makes three; knows three; mv $m/three $m/closed/three; is_all_refused closed/three
        ",
    )
}

// SEMANTICS: perm-10.
#[test]
fn after_another_client_closed_a_directory_nobody_opens_a_name_below_by_its_path() -> Result<()> {
    script(
        "kernelnames=60,actimeo=600,dirfill=off",
        r"
        makes one; knows one; chmod 700 $s/one
        # A reply of the server says so.
        [[ ! -e $m/one/missing ]]
        is_refused cat $m/one/below/file; is_refused ls $m/one/below; is_refused touch $m/one/below/file
        is_refused mkdir $m/one/below/new; is_refused truncate -s 0 $m/one/below/file
        ",
    )
}

// SEMANTICS: perm-10.
#[test]
fn whoever_works_below_a_closed_directory_goes_on() -> Result<()> {
    script(
        "kernelnames=1",
        r"
        makes one; chmod 777 $m/one/below; mkdir -m 755 $s/bound; mount --bind $m/one/below $s/bound
        cd $m/one/below; exec 3<file; chmod 700 $m/one
        works() {
            stranger cat file >/dev/null; stranger stat file >/dev/null; stranger ls . >/dev/null; stranger mkdir new; stranger rmdir new
            stranger cat /proc/self/fd/3 >/dev/null; stranger cat $s/bound/file >/dev/null
        }
        works; works; cd /; umount $s/bound; is_all_refused one
        ",
    )
}
