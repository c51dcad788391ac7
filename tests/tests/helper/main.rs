//! `curt mount` as mount(8)'s helper and directly: fstab lines, remounts, messages and exit
//! statuses, effects of options.

mod failing;
mod fstab;
mod host;
mod open_files;
mod options;
mod remount;
mod transport;
mod users;
