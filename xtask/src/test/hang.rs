//! What a test that hangs is doing: its processes and their threads, as `/proc` shows them.

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The threads of a process and of its descendants: names, states, and where each waits in the
/// kernel.
pub(super) fn report(pid: u32) -> String {
    let mut text = String::new();
    let mut waiting = vec![pid];
    while let Some(pid) = waiting.pop() {
        describe(pid, &mut text, &mut waiting);
    }
    text
}

/// Appends a process, and adds its children. What has ended meanwhile is left out.
fn describe(pid: u32, text: &mut String, children: &mut Vec<u32>) {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    let _ = writeln!(text, "process {pid}: {}", command.trim_end());
    for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let path = thread.path();
        let of = |file| line(&path, file);
        let status = fs::read_to_string(path.join("status")).unwrap_or_default();
        let state = status.lines().find_map(|line| line.strip_prefix("State:\t")).unwrap_or("");
        let (id, name) = (thread.file_name(), of("comm"));
        let _ = writeln!(
            text,
            "  thread {} {name}: {state}, waits in {}, system call {}",
            id.display(),
            of("wchan"),
            of("syscall")
        );
        let ids = of("children");
        children.extend(ids.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
    }
}

/// The first line of a file of a thread.
fn line(thread: &Path, file: &str) -> String {
    let text = fs::read_to_string(thread.join(file)).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}
