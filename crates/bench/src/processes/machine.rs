//! The machine of a measurement.

use serde::Serialize;

/// Where something was measured.
#[derive(Debug, Serialize)]
pub struct Machine {
    processor: String,
    processors: usize,
    kernel: String,
    memory_mib: u64,
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn this() -> Self {
        let field = |file: &str, name: &str| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let value =
                text.lines().find(|line| line.starts_with(name)).and_then(|line| line.split_once(':'));
            value.map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal");
        Self {
            processor: field("/proc/cpuinfo", "model name"),
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            memory_mib: memory.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024,
        }
    }

    /// A line of text.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { processor, processors, kernel, memory_mib } = self;
        format!("{processor}, {processors} processors, {memory_mib} MiB, Linux {kernel}")
    }
}
