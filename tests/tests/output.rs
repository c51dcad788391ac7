//! The output of commands if it cannot be written.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use curt_tests::curt::program;

#[test]
fn a_full_device_is_reported_and_a_closed_pipe_is_not() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("exports");
    fs::write(&file, format!("{} *(ro)\n", directory.path().display()))?;
    let file = file.display();
    let commands = [
        ("curt", "curt exports", format!("exports -c {file}")),
        ("curt", "curt serve", format!("serve --check -c {file}")),
        ("curt-tools-bench", "curt-tools-bench", "trace --rounds 1 --seconds 1".to_owned()),
    ];
    for (file, name, words) in commands {
        let run = |output: Stdio| -> Result<(Option<i32>, String)> {
            let mut command = Command::new(program(file)?);
            let ended = command.args(words.split(' ')).stdout(output).output()?;
            Ok((ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned()))
        };
        let (code, errors) = run(fs::OpenOptions::new().write(true).open("/dev/full")?.into())?;
        let told = format!("{name}: No space left on device");
        ensure!(code == Some(1) && errors.starts_with(&told), "{words}: {code:?}: {errors}");
        let (reader, unread) = std::io::pipe()?;
        drop(reader);
        let (code, errors) = run(unread.into())?;
        ensure!(code == Some(0) && errors.is_empty(), "{words}: {code:?}: {errors}");
    }
    Ok(())
}
