//! Limits on the resources that clients may use: their options, and how these become the server's
//! limits.

use std::time::Duration;

use clap::Args;
use curt_rpc::server::Limits;
use curt_server::RECORD_MAX;

/// The options that limit clients. Each states its unit; reaching a limit is logged, at most once
/// in ten seconds.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Limits (a client is an IPv4 address, or the first 64 bits of an IPv6 address)"
)]
pub(super) struct LimitArguments {
    /// Maximum number of serving threads; a client gets another one only while it has fewer than
    /// are free
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,

    /// Maximum number of connections; beyond it a new one replaces the one that has been idle
    /// longest
    #[arg(long, alias = "connections", value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// Connections of one client
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections_per_client: u32,

    /// Maximum number of calls in progress of one connection; further calls are not read
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    max_in_flight: u16,

    /// Maximum MiB of replies waiting for clients to receive them; a connection that would exceed
    /// it is closed
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_unsent: u32,

    /// Unsent replies of one client
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    max_unsent_per_client: u32,

    /// Seconds that a client may leave replies unreceived before its connection is closed
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    unsent_timeout: u32,

    /// Maximum MiB of received calls that are incomplete, or wait for a thread or for a delegation;
    /// a connection whose incomplete call would exceed it is closed
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_half_records: u32,

    /// Such calls of one client
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    max_half_records_per_client: u32,

    /// Seconds that a client may take to send one call before its connection is closed
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    half_record_timeout: u32,

    /// Seconds without a call after which a connection is closed; clients reconnect by themselves
    #[arg(long, value_name = "S", default_value_t = 360, value_parser = clap::value_parser!(u32).range(1..))]
    idle_timeout: u32,
}

impl LimitArguments {
    /// The limits of the RPC server.
    pub(super) fn limits(&self) -> Limits {
        let threads = usize::from(self.threads);
        let seconds = |number: u32| Duration::from_secs(number.into());
        Limits {
            threads,
            // At least one, and with few threads all but one.
            threads_per_client: (threads - threads.div_ceil(4)).max(1),
            connections: count(self.max_connections),
            connections_per_client: count(self.max_connections_per_client),
            in_flight: self.max_in_flight.into(),
            unsent: mebibytes(self.max_unsent),
            unsent_per_client: mebibytes(self.max_unsent_per_client),
            unsent_for: seconds(self.unsent_timeout),
            half_records: mebibytes(self.max_half_records),
            half_records_per_client: mebibytes(self.max_half_records_per_client),
            half_record_for: seconds(self.half_record_timeout),
            idle_for: seconds(self.idle_timeout),
            record: RECORD_MAX,
            shutdown_timeout: Limits::default().shutdown_timeout,
        }
    }
}

fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn mebibytes(number: u32) -> usize {
    count(number).saturating_mul(1 << 20)
}

#[cfg(test)]
mod tests {
    use curt_rpc::server::ResourceLimit;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        limits: LimitArguments,
    }

    fn limits(words: &[&str]) -> Option<Limits> {
        let line = ["serve"].iter().chain(words);
        let line = <Line as clap::Parser>::try_parse_from(line).ok()?;
        Some(line.limits.limits())
    }

    #[test]
    fn without_options_the_limits_are_those_of_the_library() {
        let ours = limits(&[]).expect("nothing is wrong with no options");
        let theirs = Limits { record: RECORD_MAX, ..Limits::default() };
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    }

    #[test]
    fn every_reported_limit_is_an_option() {
        let command = <LimitArguments as Args>::augment_args(clap::Command::new("serve"));
        for limit in ResourceLimit::ALL.into_iter().filter(|limit| *limit != ResourceLimit::System) {
            let named = |argument: &clap::Arg| argument.get_long() == Some(limit.name());
            assert!(command.get_arguments().any(named), "--{}", limit.name());
        }
    }

    #[test]
    fn every_option_reaches_its_limit_and_none_may_be_zero() {
        let options = [
            "--threads",
            "--max-connections",
            "--max-connections-per-client",
            "--max-in-flight",
            "--max-unsent",
            "--max-unsent-per-client",
            "--unsent-timeout",
            "--max-half-records",
            "--max-half-records-per-client",
            "--half-record-timeout",
            "--idle-timeout",
        ];
        let words: Vec<String> =
            (0..).zip(options).flat_map(|(n, option)| [option.to_owned(), (n + 8).to_string()]).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let limits_set = limits(&words).expect("they are all numbers");
        let set = [
            limits_set.threads,
            limits_set.connections,
            limits_set.connections_per_client,
            limits_set.in_flight,
            limits_set.unsent >> 20,
            limits_set.unsent_per_client >> 20,
            usize::try_from(limits_set.unsent_for.as_secs()).unwrap_or(0),
            limits_set.half_records >> 20,
            limits_set.half_records_per_client >> 20,
            usize::try_from(limits_set.half_record_for.as_secs()).unwrap_or(0),
            usize::try_from(limits_set.idle_for.as_secs()).unwrap_or(0),
        ];
        assert_eq!(set.to_vec(), (8..8 + options.len()).collect::<Vec<_>>());
        assert_eq!(limits_set.threads_per_client, 6);
        for option in options {
            assert!(limits(&[option, "0"]).is_none(), "{option} 0");
        }
        assert!(limits(&["--connections", "5"]).is_some_and(|limits| limits.connections == 5));
        assert!(limits(&["--threads", "1"]).is_some_and(|limits| limits.threads_per_client == 1));
    }
}
