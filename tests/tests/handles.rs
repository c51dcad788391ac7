//! Files opened by handle on a mount (name_to_handle_at(2), open_by_handle_at(2)), as by programs
//! and NFS servers that export it.

use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe};
use curt_tests::network::Network;

const LIMIT: Duration = Duration::from_secs(120);

/// Checks handles of a mount. Its arguments are the mount, the exported directory, and a file to
/// store a handle in. A remount with the same options drops the unused dentries and inodes of this
/// mount alone.
const PROGRAM: &str = r#"
import ctypes, errno, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
mount, export, kept = sys.argv[1:]
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
def handle(path):
    buffer = ctypes.create_string_buffer(b"\x80\0\0\0\0\0\0\0", 136)
    checked(libc.name_to_handle_at(-100, (mount + path).encode(), buffer, ctypes.byref(ctypes.c_int()), 0))
    return buffer
def opened(what, flags=os.O_RDONLY):
    top = os.open(mount, os.O_RDONLY)
    try:
        return checked(libc.open_by_handle_at(top, what, flags))
    finally:
        os.close(top)
def write(path, data):
    with open(path, "w") as file:
        file.write(data)
def forget():
    subprocess.run(["mount", "-i", "-o", "remount,rw", mount], check=True)
def expect(what, expected):
    try:
        file = opened(what)
        if isinstance(expected, tuple):
            found = os.readlink(f"/proc/self/fd/{file}")[len(mount):], sorted(os.listdir(file))
        else:
            found = os.read(file, 100).decode()
        os.close(file)
    except OSError as error:
        found = errno.errorcode[error.errno]
    assert found == expected, (found, expected)
def expect_also_when_forgotten(what, expected):
    expect(what, expected)
    forget()
    expect(what, expected)
    forget()
    expect(what, expected)

os.makedirs(mount + "/d/e/f")
names = ["linked", "renamed", "removed", "removed-open", "removed-elsewhere", "e/f/deep"]
for name in names:
    write(mount + "/d/" + name, "data of " + name)
os.link(mount + "/d/linked", mount + "/d/second")
handles = {name: handle("/d/" + name) for name in names}
root, directory, inner = handle("/"), handle("/d/e"), handle("/d/e/f")
for name in names:
    expect_also_when_forgotten(handles[name], "data of " + name)
expect_also_when_forgotten(root, ("", ["d"]))
expect_also_when_forgotten(directory, ("/d/e", ["f"]))
expect_also_when_forgotten(inner, ("/d/e/f", ["deep"]))

os.unlink(mount + "/d/linked")
expect_also_when_forgotten(handles["linked"], "data of linked")
os.rename(mount + "/d/renamed", mount + "/d/e/new")
os.rename(mount + "/d/e", mount + "/moved")
expect_also_when_forgotten(handles["renamed"], "data of renamed")
expect_also_when_forgotten(directory, ("/moved", ["f", "new"]))
expect_also_when_forgotten(inner, ("/moved/f", ["deep"]))
expect_also_when_forgotten(handles["e/f/deep"], "data of e/f/deep")

os.unlink(mount + "/d/removed")
expect_also_when_forgotten(handles["removed"], "ESTALE")
held = os.open(mount + "/d/removed-open", os.O_RDONLY)
os.unlink(mount + "/d/removed-open")
expect_also_when_forgotten(handles["removed-open"], "data of removed-open")
os.close(held)
while any(name.startswith(".nfs") for name in os.listdir(export + "/d")):
    pass
expect_also_when_forgotten(handles["removed-open"], "ESTALE")
os.unlink(export + "/d/removed-elsewhere")
expect_also_when_forgotten(handles["removed-elsewhere"], "ESTALE")

file = opened(handles["linked"], os.O_WRONLY | os.O_APPEND)
os.write(file, b", and more")
os.close(file)
expect_also_when_forgotten(handles["linked"], "data of linked, and more")

# A handle of an earlier mount is no object of this one.
if os.path.exists(kept):
    with open(kept, "rb") as file:
        expect(ctypes.create_string_buffer(file.read(), 136), "ESTALE")
with open(kept, "wb") as file:
    file.write(bytes(handles["linked"]))
print("done")
"#;

// SEMANTICS: posix-7.
#[test]
fn handles_open_what_they_were_made_of_until_it_is_removed_or_the_mount_ends() -> Result<()> {
    let network = Network::new()?;
    let program = network.directory().join("program.py");
    std::fs::write(&program, PROGRAM)?;
    let server_of = |export: &str| -> Result<_> {
        let export = network.make_directory(export)?;
        Ok((CurtServe::start(&network, &export, &[])?, export))
    };
    for (place, options) in [("a", "noaccesscheck"), ("b", "accesscheck,lookupcache=none")] {
        let (server, export) = server_of(place)?;
        let mount =
            CurtMount::start(&network, "mount", &server.source(), &format!("{},{options}", server.ports()))?;
        let said = network.shell(
            &format!(
                "python3 {} {} {} {}",
                program.display(),
                mount.directory().display(),
                export.display(),
                network.directory().join("kept").display()
            ),
            LIMIT,
        )?;
        ensure!(said.trim() == "done", "{said}");
        mount.unmount()?;
    }
    Ok(())
}
