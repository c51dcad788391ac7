//! Files that programs keep open.

use anyhow::{Result, ensure};

use crate::host::Host;

/// Reads a file through the mount, has it changed on the server, and reads by the same descriptor
/// until it sees the change, for at most 20 s. It makes no stat(2).
const READER: &str = r#"
    use Fcntl;
    sysopen(my $file, $ARGV[0], O_RDONLY) or die $!;
    sysread($file, my $seen, 6);
    print "$seen ";
    open(my $other, "+<", $ARGV[1]) or die $!;
    syswrite($other, "second");
    close $other;
    for (1..200) {
        sysseek($file, 0, 0);
        sysread($file, $seen, 6);
        last if $seen eq "second";
        select(undef, undef, undef, 0.1);
    }
    print "$seen";
"#;

// SEMANTICS: cto-5.
#[test]
fn a_reader_that_keeps_a_file_open_sees_anothers_change_when_attributes_have_expired() -> Result<()> {
    let host = Host::new()?;
    let _serve = host.serve(&[])?;
    host.mounted("actimeo=1")?;
    let there = host.export.join("kept");
    std::fs::write(&there, "first!")?;
    let there = there.display().to_string();
    let done = host.run(&["perl", "-e", READER, &host.inside("kept"), &there])?;
    ensure!(done.text == "first! second", "{done:?}");
    host.unmount()
}
