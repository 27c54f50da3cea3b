//! Users of the server: client processes and their contexts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::super::log::{KernelLog, Log, Voice};
use super::super::profile::Gpu;
use super::super::protocol::{ClientRow, Orders};
use super::super::wire::Conn;

pub(super) struct Server {
    log: Log,
    pub(super) kernel: KernelLog,
    pub(super) version: u32,
    /// The daemon's GPUs in its order.
    pub(super) gpus: Vec<Gpu>,
    pub(super) partitioned: bool,
    pub(super) control: Conn,
    /// While this is locked, this process stays alive when the control process is gone.
    pub(super) life: Arc<Mutex<()>>,
    table: Mutex<Table>,
    /// Notified whenever a connection ends.
    pub(super) left: Condvar,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) percentage: f64,
    pub(super) limits: BTreeMap<usize, u64>,
    /// In the order of their first connections.
    pub(super) processes: Vec<Process>,
    /// All contexts in the order in which they came, which every list follows.
    pub(super) contexts: Vec<Context>,
    next_id: u32,
    /// Devices to be reset; clients on them have to leave first.
    pub(super) resetting: BTreeSet<usize>,
    /// Devices whose server context is gone since a fault.
    pub(super) destroyed: BTreeSet<usize>,
    /// Processes whose worker is in reset as they exit.
    pub(super) in_reset: BTreeSet<i32>,
    /// Process and context that came before: the real server prints these by mistake.
    pub(super) stale: (i32, u32),
}

pub(super) struct Process {
    pub(super) pid: i32,
    /// ID, which the process gets with its first context.
    pub(super) id: u32,
    pub(super) namespace: u64,
    pub(super) command: String,
    pub(super) partition: Option<String>,
    pub(super) conn: Arc<Conn>,
}

pub(super) struct Context {
    pub(super) pid: i32,
    pub(super) number: u32,
    pub(super) device: usize,
    pub(super) connections: u32,
    pub(super) conn: Arc<Conn>,
}

impl Server {
    pub(super) fn new(
        (log, kernel): (Log, KernelLog),
        version: u32,
        gpus: Vec<Gpu>,
        orders: &Orders,
        control: Conn,
        life: Arc<Mutex<()>>,
    ) -> Self {
        let table = Table { percentage: orders.percentage, ..Table::default() };
        Self {
            log,
            kernel,
            version,
            gpus,
            partitioned: orders.partitioned,
            control,
            life,
            table: Mutex::new(table),
            left: Condvar::new(),
        }
    }

    pub(super) fn log(&self, text: &dyn Display) {
        self.log.line(Voice::Server, &text.to_string());
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no thread of the server panics while it holds the table")
    }
}

impl Table {
    pub(super) fn faulted(&self) -> bool {
        !self.resetting.is_empty()
    }

    /// Returns the number of worker threads: one a connection.
    pub(super) fn threads(&self) -> usize {
        self.processes.len() + self.contexts.len()
    }

    pub(super) fn on_device(&self, device: usize) -> impl Iterator<Item = &Context> {
        self.contexts.iter().filter(move |context| context.device == device)
    }

    pub(super) fn of_process(&self, pid: i32) -> impl Iterator<Item = &Context> {
        self.contexts.iter().filter(move |context| context.pid == pid)
    }

    /// Registers a context; a process keeps the number of its first one as its ID.
    ///
    /// That contexts are counted and not processes is inferred from recording 05, where the next process after 65
    /// with 87 contexts got ID 89.
    pub(super) fn add_context(&mut self, context: Context) {
        self.next_id += 1;
        if let Some(process) = self.processes.iter_mut().find(|process| process.pid == context.pid)
            && process.id == 0
        {
            process.id = self.next_id;
        }
        self.contexts.push(context);
    }

    /// Returns the clients in the order of their IDs.
    pub(super) fn rows(&self) -> Vec<ClientRow> {
        let mut rows: Vec<_> = self
            .processes
            .iter()
            .filter(|process| process.id > 0)
            .map(|process| ClientRow {
                pid: process.pid,
                id: process.id,
                namespace: process.namespace,
                command: process.command.clone(),
                contexts: self
                    .of_process(process.pid)
                    .map(|context| (context.number, context.device))
                    .collect(),
                partition: process.partition.clone(),
            })
            .collect();
        rows.sort_by_key(|row| row.id);
        rows
    }
}
