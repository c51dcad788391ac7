//! What is mounted below a mount's directories, and what runs from there, stays whatever changes around it.

use std::time::Duration;

use anyhow::Result;
use curt_tests::curt::{Mount, Serve};
use curt_tests::network::Network;

const LIMIT: Duration = Duration::from_secs(60);

/// In `$m` a mount, in `$s` the directory that the server exports, in `$w` room for an overlay.
const SCRIPT: &str = r#"
    mkdir -p $m/here/dir $m/here/lower $m/elsewhere; chmod 755 $m/here
    echo ours >$m/here/file; echo conf >$m/here/lower/conf; cp $(command -v sleep) $m/here/program
    $m/here/program 600 & running=$!; trap "kill $running" EXIT
    mount -t tmpfs none $m/here/dir; echo inside >$m/here/dir/inside
    echo bound >$w/bound; mount --bind $w/bound $m/here/file
    mount -t tmpfs none $w; mkdir $w/upper $w/work $w/merged
    mount -t overlay -o lowerdir=$m/here/lower,upperdir=$w/upper,workdir=$w/work none $w/merged
    exec 3<$m/here/lower/conf
    stays() {
        [[ $(<$m/here/dir/inside) == inside && $(<$m/here/file) == bound && $(<$w/merged/conf) == conf ]]
        [[ $(readlink /proc/$running/exe) == $m/here/program && $(readlink /proc/self/fd/3) == $m/here/lower/conf ]]
    }
    ls -R $m >/dev/null; stays
    # Somebody else changes directories, which is noticed here.
    touch $s/elsewhere/new $s/here/new
    until [[ -n $(ls $m/elsewhere) && -e $m/here/new ]]; do sleep 0.1; done
    stays
    # So does this mount.
    chmod 700 $m/elsewhere; chmod 711 $m/here; mv $m/elsewhere $m/here/moved; rm -r $m/here/moved
    ls -R $m >/dev/null; stays
    exec 3<&-; kill $running; trap - EXIT; wait $running || true
    umount $w/merged $w $m/here/file $m/here/dir
"#;

fn what_is_mounted_below_stays(options: &str) -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let room = network.make_directory("room")?;
    let server = Serve::start(&network, &export, &[])?;
    let options = format!("{},actimeo=1,{options}", server.ports());
    let mount = Mount::start(&network, "mount", &server.source(), &options)?;
    let places = format!(
        "m={} s={} w={}\n",
        mount.directory().display(),
        export.display(),
        room.display()
    );
    network.shell(&(places + SCRIPT), LIMIT)?;
    mount.unmount()
}

#[test]
fn what_is_mounted_below_a_mount_stays() -> Result<()> {
    what_is_mounted_below_stays("accesscheck")
}

#[test]
fn what_is_mounted_below_a_mount_stays_where_names_need_no_access_check() -> Result<()> {
    what_is_mounted_below_stays("noaccesscheck")
}
