//! A Linux client that locks a file when it is told to.

use std::time::Duration;

use anyhow::Result;

use crate::kernel::{ClientJob, KernelNumber};
use crate::network::Network;

const MINUTES: Duration = Duration::from_secs(300);

/// The program that Linux clients run: each line of its input is a command, and its output says how
/// it ended. `lock`, `try` and `unlock` are about a range of `/mnt/nfs/file`.
const COMMANDS: &str = r#"
import fcntl, os, sys, time
file = os.open("/mnt/nfs/file", os.O_RDWR)
def command(word, first, length):
    begun = time.monotonic()
    how = {"lock": fcntl.LOCK_EX, "try": fcntl.LOCK_EX | fcntl.LOCK_NB, "unlock": fcntl.LOCK_UN}[word]
    try:
        fcntl.lockf(file, how, length, first)
        return f"{word} {first} done {time.monotonic() - begun:.1f}"
    except OSError as error:
        return f"{word} {first} error {error.errno}"
for line in open(sys.argv[1]):
    words = line.split()
    print(command(words[0], int(words[1]), int(words[2])), flush=True)
"#;

/// A Linux client that obeys. Its mount is at `/mnt/nfs`.
pub struct LinuxLocker<'n> {
    /// The script in its kernel.
    pub job: ClientJob,
    network: &'n Network,
    name: &'static str,
    told: usize,
}

impl<'n> LinuxLocker<'n> {
    /// Boots a kernel that mounts; `mounting` is the options and the source.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(
        network: &'n Network,
        number: KernelNumber,
        mounting: &str,
        name: &'static str,
    ) -> Result<Self> {
        let directory = network.make_directory("commands")?;
        std::fs::write(directory.join("commands.py"), COMMANDS)?;
        let place = directory.display();
        // Commands are files: the kernel sees this directory, but no pipe of this machine.
        let script = format!(
            "mount -t nfs -o {mounting} /mnt/nfs || exit 1
            mkfifo /run/commands
            python3 {place}/commands.py /run/commands &
            exec 3>/run/commands
            echo MOUNTED
            number=0
            while :; do
                number=$((number + 1))
                until [[ -e {place}/{name}-$number ]]; do sleep 0.02; done
                read -r first rest < {place}/{name}-$number
                case $first in
                    run) bash -c \"$rest\"; echo \"RAN $number $?\" ;;
                    end) exit 0 ;;
                    *) echo \"$first $rest\" >&3 ;;
                esac
            done"
        );
        let job = ClientJob::start(network, number, MINUTES, &script)?;
        Ok(Self { job, network, name, told: 0 })
    }

    /// Waits until it has mounted.
    ///
    /// # Errors
    /// The kernel does not boot or mount.
    pub fn mounted(self) -> Result<Self> {
        self.job.wait_for("MOUNTED")?;
        Ok(self)
    }

    /// Gives it a command: `lock`, `try` or `unlock` with the first byte and the length, 0: to the
    /// end.
    ///
    /// # Errors
    /// The command cannot be written.
    pub fn tell(&mut self, command: &str) -> Result<()> {
        self.told += 1;
        let directory = self.network.make_directory("commands")?;
        let path = directory.join(format!("{}-{}", self.name, self.told));
        let beside = path.with_extension("new");
        std::fs::write(&beside, format!("{command}\n"))?;
        Ok(std::fs::rename(beside, path)?)
    }

    /// Has it do something, and waits for its answer.
    ///
    /// # Errors
    /// The answer is another one.
    pub fn ask(&mut self, command: &str, answer: &str) -> Result<()> {
        self.tell(command)?;
        self.job.wait_for(answer)
    }

    /// Runs a bash script in one line.
    ///
    /// # Errors
    /// It fails.
    pub fn run(&mut self, script: &str) -> Result<()> {
        self.tell(&format!("run {script}"))?;
        self.job.wait_for(&format!("RAN {} 0", self.told))
    }

    /// Ends it. Returns its output.
    ///
    /// # Errors
    /// The kernel does not end.
    pub fn end(mut self) -> Result<String> {
        self.tell("end")?;
        Ok(self.job.finish()?.output)
    }
}
