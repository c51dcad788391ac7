//! Installs and uninstalls the program and mount(8)'s helpers.
//!
//! mount(8) looks for helpers only in /sbin: `mount.curt` for fstab lines and `mount -t curt`, and
//! `mount.fuse.curt` for a remount of a mount without a line, of which it only has the type
//! `fuse.curt`. Both are links to the program.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The links, in /sbin.
const HELPERS: [&str; 2] = ["mount.curt", "mount.fuse.curt"];

/// The installation paths.
pub(crate) struct InstallPaths {
    /// Prefix of all paths, for packagers.
    root: PathBuf,
    /// Directory of `bin` for the program.
    prefix: PathBuf,
}

impl InstallPaths {
    pub(crate) fn new(root: &Path, prefix: &Path) -> Self {
        Self { root: root.to_owned(), prefix: prefix.to_owned() }
    }

    /// An installation path below the root.
    fn below_root(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The program, as in the links.
    fn program(&self) -> PathBuf {
        self.prefix.join("bin/curt")
    }
}

/// Builds and installs.
pub(crate) fn install(repository: &Path, places: &InstallPaths) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built =
        Command::new(cargo).current_dir(repository).args(["build", "--release", "-p", "curt"]).status()?;
    ensure!(built.success(), "curt was not built");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository.join("target"), PathBuf::from);
    put(&target.join("release/curt"), places)
}

/// Copies the program and creates the links. A running program keeps its old file.
fn put(built: &Path, places: &InstallPaths) -> Result<()> {
    let program = places.below_root(&places.program());
    let helpers = places.below_root(Path::new("/sbin"));
    for directory in [program.parent().context("PREFIX/bin")?, &helpers] {
        std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    let new = program.with_extension("new");
    std::fs::copy(built, &new).with_context(|| new.display().to_string())?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755))?;
    std::fs::rename(&new, &program)?;
    println!("{}", program.display());
    for name in HELPERS {
        let link = helpers.join(name);
        remove_link(&link)?;
        symlink(places.program(), &link).with_context(|| link.display().to_string())?;
        println!("{} -> {}", link.display(), places.program().display());
    }
    Ok(())
}

/// Removes the files of [`install`].
pub(crate) fn uninstall(places: &InstallPaths) -> Result<()> {
    for name in HELPERS {
        remove_link(&places.below_root(Path::new("/sbin")).join(name))?;
    }
    let program = places.below_root(&places.program());
    match std::fs::remove_file(&program) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| program.display().to_string())
        }
        _ => Ok(()),
    }
}

/// Removes a link, but not a file of that name.
fn remove_link(link: &Path) -> Result<()> {
    match std::fs::symlink_metadata(link) {
        Ok(there) => {
            ensure!(there.is_symlink(), "{} is not a link of ours; remove it by hand", link.display());
            std::fs::remove_file(link).with_context(|| link.display().to_string())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| link.display().to_string()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_twice_is_there_once_and_goes_again() {
        let root = std::env::temp_dir().join(format!("curt-install-{}", std::process::id()));
        let places = InstallPaths::new(&root, Path::new("/usr/local"));
        std::fs::create_dir_all(&root).unwrap();
        let built = root.join("built");
        std::fs::write(&built, "program").unwrap();
        put(&built, &places).unwrap();
        put(&built, &places).unwrap();
        assert_eq!(std::fs::read(root.join("usr/local/bin/curt")).unwrap(), b"program");
        for name in HELPERS {
            let link = std::fs::read_link(root.join("sbin").join(name)).unwrap();
            assert_eq!(link, Path::new("/usr/local/bin/curt"));
        }
        std::fs::remove_file(root.join("sbin/mount.curt")).unwrap();
        std::fs::write(root.join("sbin/mount.curt"), "of somebody else").unwrap();
        assert!(uninstall(&places).is_err());
        std::fs::remove_file(root.join("sbin/mount.curt")).unwrap();
        uninstall(&places).unwrap();
        uninstall(&places).unwrap();
        assert!(!root.join("usr/local/bin/curt").exists() && !root.join("sbin/mount.fuse.curt").exists());
        std::fs::remove_dir_all(root).unwrap();
    }
}
