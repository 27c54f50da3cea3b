//! The figures that the project promises, as medians on the simulated host: `cargo bench --bench figures`,
//! or some of them: `cargo bench --bench figures -- partitions`.
//!
//! It drives the release binary as an operator would. A figure is a median of several runs and stands beside its
//! bound; the exit code is 1 when a bound is passed. `docs/figures.md` keeps what was measured.

mod bare;
mod callers;
mod daemons;
#[path = "../../tests/host/mod.rs"]
mod host;
mod host_file;
mod imports;
mod metrics;
mod pages;
mod partitions;
mod server;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Measures on hosts in a directory of its own.
type Measure = fn(&Path, &mut Table);

fn main() -> ExitCode {
    // `cargo bench` passes flags of the standard harness, which this is not. Names are of what alone is to be measured.
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let home = tempfile::Builder::new().prefix("mf").tempdir_in("/tmp").expect("a directory");
    let mut table = Table::default();
    let all: [(&str, Measure); 11] = [
        ("start", daemons::starts),
        ("polls", daemons::polls),
        ("idle", daemons::idle),
        ("partitions", partitions::partitions),
        ("imports", imports::imports),
        ("host-file", host_file::host_files),
        ("busy-host", host_file::busy_host),
        ("callers", callers::callers),
        ("bare", bare::bare),
        ("metrics", metrics::metrics),
        ("pages", pages::pages),
    ];
    if let Some(unknown) = asked.iter().find(|asked| all.iter().all(|(name, _)| name != asked)) {
        eprintln!(
            "{unknown} is not measured here: name some of {}, or none for all",
            all.map(|(name, _)| name).join(", ")
        );
        return ExitCode::FAILURE;
    }
    for (name, measure) in all {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            measure(&home.path().join(&name[..2]), &mut table);
        }
    }
    table.print()
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<(String, f64, Option<f64>)>,
}

impl Table {
    pub(crate) fn row(&mut self, what: impl Into<String>, value: f64, bound: Option<f64>) {
        self.rows.push((what.into(), value, bound));
    }

    fn print(&self) -> ExitCode {
        println!("| figure | measured | at most |\n| --- | ---: | ---: |");
        let mut passed = true;
        for (what, value, bound) in &self.rows {
            let shown = bound.map_or_else(String::new, |bound| format!("{bound}"));
            println!("| {what} | {value:.1} | {shown} |");
            passed &= bound.is_none_or(|bound| *value <= bound);
        }
        if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
