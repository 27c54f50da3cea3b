//! An inventory whose callers are never kept waiting forever.
//!
//! One GPU in trouble can make a call of the driver take until the next boot, and no process can end such a call: a caller that
//! waits for it waits as long. So each call is made on a thread of its own, and given up at a deadline. Until that call
//! returns, every other fails at once with the same error: it would hang as well, and keep another thread.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{DeviceFile, GpuDriver, Inventory, InventoryError, Suspendable, SuspendedGpus};
use crate::domain::GpuUuid;
use crate::domain::gpu::{ComputeMode, Gpu, GpuProcess};
use crate::domain::vitals::GpuVitals;

/// Longest time for a call: a GPU that is well answers within milliseconds, and one that recovers from an error within a few seconds.
const DEADLINE: Duration = Duration::from_secs(5);
/// Longest time for the driver to open: without persistence mode it initialises each GPU then, for seconds each.
const OPENING: Duration = Duration::from_secs(60);
/// Longest time for the driver to close, after its last call has ended.
const CLOSING: Duration = Duration::from_secs(10);
/// Most calls at the same time: the next call waits for one of them to end, so that no more threads than these hang.
const LANES: usize = 8;

/// An inventory that answers in time, possibly with the error that the driver does not.
pub struct TimeLimited<I> {
    inner: Arc<I>,
    deadline: Duration,
    calls: Arc<OpenCalls>,
    /// Calls that open or close the driver. They are counted apart: while one of them hangs, remembered facts are still reported.
    turns: Arc<OpenCalls>,
    last: Mutex<LastReport>,
}

/// Last report of the driver.
#[derive(Default)]
struct LastReport {
    driver: Option<GpuDriver>,
    gpus: Option<Vec<Gpu>>,
}

/// The calls that have not returned.
#[derive(Default)]
struct OpenCalls {
    under_way: Mutex<UnderWay>,
    ended: Condvar,
}

#[derive(Default)]
struct UnderWay {
    /// The deadline of each call, and the time that it was given.
    until: BTreeMap<u64, (Instant, Duration)>,
    next: u64,
    /// Time since which the driver is silent, if the log says that it is.
    silent: Option<Instant>,
}

impl UnderWay {
    /// Returns the error of the first call that was given up, if it still has not returned.
    fn stuck(&self) -> Option<InventoryError> {
        let now = Instant::now();
        self.until.values().find(|(until, _)| *until <= now).map(|(_, deadline)| silent(*deadline))
    }
}

impl OpenCalls {
    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        // After a panic elsewhere the map is as before or after one change: both are whole.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call, after a wait for room; refuses while another call is stuck.
    fn begin(&self, deadline: Duration) -> Result<u64, InventoryError> {
        let mut calls = self.under_way();
        loop {
            if let Some(error) = calls.stuck() {
                return Err(error);
            }
            if calls.until.len() < LANES {
                break;
            }
            let first = calls.until.values().map(|(until, _)| *until).min().unwrap_or_else(Instant::now);
            let pause = first.saturating_duration_since(Instant::now());
            let waited = self.ended.wait_timeout(calls, pause);
            (calls, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let id = calls.next;
        calls.next += 1;
        calls.until.insert(id, (Instant::now() + deadline, deadline));
        Ok(id)
    }

    fn gave_up(&self, call: &'static str) {
        let mut calls = self.under_way();
        if calls.silent.is_none()
            && let Some(error) = calls.stuck()
        {
            calls.silent = Some(Instant::now());
            tracing::error!(call, %error, "the driver is silent");
        }
    }

    fn end(&self, id: u64) {
        let mut calls = self.under_way();
        calls.until.remove(&id);
        if calls.stuck().is_none()
            && let Some(since) = calls.silent.take()
        {
            tracing::warn!(silent_s = since.elapsed().as_secs(), "the driver answers again");
        }
        self.ended.notify_all();
    }
}

fn silent(deadline: Duration) -> InventoryError {
    InventoryError::Silent { seconds: deadline.as_secs_f64() }
}

/// Makes a call on a thread of its own, and waits until the deadline; then asks `give_up` whether the call may be given up.
fn within<T: Send + 'static>(
    calls: &Arc<OpenCalls>,
    name: &'static str,
    deadline: Duration,
    give_up: impl FnOnce() -> bool,
    call: impl FnOnce() -> Result<T, InventoryError> + Send + 'static,
) -> Result<T, InventoryError> {
    let id = calls.begin(deadline)?;
    let under_way = Arc::clone(calls);
    let (answer, answered) = sync_channel(1);
    let failed = |detail: String| InventoryError::Driver { call: name, detail };
    let thread = std::thread::Builder::new().name(format!("gpu {name}")).spawn(move || {
        // A panic closes the channel, which shows it to the caller.
        let result = catch_unwind(AssertUnwindSafe(call));
        // Ended before the caller has the answer, so that it can make another call.
        under_way.end(id);
        if let Ok(result) = result {
            // Nobody receives the answer of a call that was given up.
            let _ = answer.send(result);
        }
    });
    if let Err(error) = thread {
        calls.end(id);
        return Err(failed(format!("no thread could be started for the call: {error}")));
    }
    let gone = || failed("the call ended without an answer: the log says why".to_owned());
    match answered.recv_timeout(deadline) {
        Ok(result) => result,
        Err(RecvTimeoutError::Disconnected) => Err(gone()),
        Err(RecvTimeoutError::Timeout) if give_up() => {
            calls.gave_up(name);
            Err(silent(deadline))
        }
        Err(RecvTimeoutError::Timeout) => answered.recv().unwrap_or_else(|_| Err(gone())),
    }
}

impl<I: Inventory> TimeLimited<I> {
    /// Makes an inventory that limits the calls of `inner`.
    pub fn new(inner: I) -> Self {
        Self::with_deadline(inner, DEADLINE)
    }

    /// Makes an inventory with another deadline for a call.
    pub fn with_deadline(inner: I, deadline: Duration) -> Self {
        Self {
            inner: Arc::new(inner),
            deadline,
            calls: Arc::default(),
            turns: Arc::default(),
            last: Mutex::default(),
        }
    }

    fn query<T: Send + 'static>(
        &self,
        name: &'static str,
        call: impl FnOnce(&I) -> Result<T, InventoryError> + Send + 'static,
    ) -> Result<T, InventoryError> {
        let inner = Arc::clone(&self.inner);
        within(&self.calls, name, self.deadline, || true, move || call(&inner))
    }

    fn last(&self) -> MutexGuard<'_, LastReport> {
        // After a panic elsewhere the values are still whole.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: Inventory> Inventory for TimeLimited<I> {
    fn driver(&self) -> Result<GpuDriver, InventoryError> {
        let driver = self.query("driver", Inventory::driver)?;
        self.last().driver = Some(driver.clone());
        Ok(driver)
    }

    fn gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
        // The driver's version may be requested for the first time while the driver is silent.
        let has_driver = self.last().driver.is_some();
        let (gpus, driver) = self.query("gpus", move |inner| {
            let gpus = inner.gpus()?;
            Ok((gpus, if has_driver { None } else { inner.driver().ok() }))
        })?;
        let mut last = self.last();
        last.driver = driver.or_else(|| last.driver.take());
        last.gpus = Some(gpus.clone());
        Ok(gpus)
    }

    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, InventoryError> {
        let gpu = gpu.clone();
        self.query("processes", move |inner| inner.processes(&gpu))
    }

    fn set_compute_mode(&self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), InventoryError> {
        let gpu = gpu.clone();
        self.query("set_compute_mode", move |inner| inner.set_compute_mode(&gpu, mode))
    }

    fn device_files(&self, gpus: &[GpuUuid]) -> Result<Vec<DeviceFile>, InventoryError> {
        let gpus = gpus.to_vec();
        self.query("device_files", move |inner| inner.device_files(&gpus))
    }

    fn vitals(&self, gpus: &[GpuUuid]) -> Result<BTreeMap<GpuUuid, GpuVitals>, InventoryError> {
        let gpus = gpus.to_vec();
        self.query("vitals", move |inner| inner.vitals(&gpus))
    }

    fn live(&self) -> bool {
        self.inner.live()
    }

    fn known_driver(&self) -> Result<GpuDriver, InventoryError> {
        self.driver().or_else(|error| match error {
            InventoryError::Silent { .. } => self.last().driver.clone().ok_or(error),
            error => Err(error),
        })
    }

    fn known_gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
        self.gpus().or_else(|error| match error {
            InventoryError::Silent { .. } => self.last().gpus.clone().ok_or(error),
            error => Err(error),
        })
    }
}

impl TimeLimited<Suspendable> {
    /// Opens the inventory and lists its GPUs.
    pub fn open(
        opener: impl Fn() -> Result<Box<dyn Inventory>, InventoryError> + Send + Sync + 'static,
    ) -> Result<Self, InventoryError> {
        let call = move || {
            let inventory = Suspendable::open(opener)?;
            inventory.gpus()?;
            Ok(inventory)
        };
        Ok(Self::new(within(&Arc::default(), "open", OPENING, || true, call)?))
    }

    /// Returns everything that is reported while the driver is closed.
    pub fn remember(&self) -> Result<SuspendedGpus, InventoryError> {
        self.query("remember", Suspendable::remember)
    }

    /// Closes the driver, after the calls that are under way; [`InventoryError::Silent`] if these do not end within `timeout`, or the
    /// driver is not released.
    pub fn suspend(&self, remembered: SuspendedGpus, timeout: Duration) -> Result<(), InventoryError> {
        let inner = Arc::clone(&self.inner);
        let call = move || if inner.suspend(remembered, timeout) { Ok(()) } else { Err(silent(timeout)) };
        within(&self.turns, "suspend", timeout + CLOSING, || true, call)
    }

    /// Opens the driver again; does nothing if it is open. One that opens too late is closed at once, since no caller would know of it.
    pub fn resume(&self) -> Result<(), InventoryError> {
        if self.live() {
            return Ok(());
        }
        let inner = Arc::clone(&self.inner);
        let decided = Arc::new(AtomicBool::new(false));
        let first = |decided: &AtomicBool| !decided.swap(true, Ordering::SeqCst);
        let in_time = Arc::clone(&decided);
        let call = move || inner.resume_if(|| first(&in_time));
        within(&self.turns, "resume", OPENING, || first(&decided), call)?;
        // The driver may be another version now.
        *self.last() = LastReport::default();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::testing::h200;

    /// Longest wait for what has to come.
    const TIMEOUT: Duration = Duration::from_secs(30);
    const DEADLINE: Duration = Duration::from_millis(100);

    /// An inventory of one GPU whose calls for processes return when the test releases them.
    struct Hanging {
        begun: AtomicUsize,
        ended: Sender<()>,
        gate: Mutex<Receiver<()>>,
    }

    impl Hanging {
        fn with_timeout(deadline: Duration) -> (TimeLimited<Self>, Sender<()>, Receiver<()>) {
            let (go_on, gate) = channel();
            let (ended, over) = channel();
            let inner = Self { begun: AtomicUsize::new(0), ended, gate: Mutex::new(gate) };
            (TimeLimited::with_deadline(inner, deadline), go_on, over)
        }
    }

    impl Inventory for Hanging {
        fn driver(&self) -> Result<GpuDriver, InventoryError> {
            Err(InventoryError::NoDriver { detail: "a test needs none".to_owned() })
        }

        fn gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
            Ok(vec![h200(0)])
        }

        fn processes(&self, _: &GpuUuid) -> Result<Vec<GpuProcess>, InventoryError> {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let _ = self.gate.lock().expect("whole").recv_timeout(TIMEOUT);
            let _ = self.ended.send(());
            Ok(Vec::new())
        }

        fn set_compute_mode(&self, _: &GpuUuid, _: ComputeMode) -> Result<(), InventoryError> {
            panic!("a fault")
        }

        fn device_files(&self, _: &[GpuUuid]) -> Result<Vec<DeviceFile>, InventoryError> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn hung_call_times_out_without_further_calls() {
        let (with_timeout, go_on, over) = Hanging::with_timeout(DEADLINE);
        let gpu = h200(0).uuid;
        assert!(matches!(with_timeout.known_gpus(), Ok(gpus) if gpus == [h200(0)]));
        let error = with_timeout.processes(&gpu).expect_err("it hangs");
        assert!(matches!(error, InventoryError::Silent { .. }), "{error}");
        // At once, and without another thread.
        let began = Instant::now();
        for _ in 0..100 {
            assert!(matches!(with_timeout.gpus(), Err(InventoryError::Silent { .. })));
            assert!(matches!(with_timeout.processes(&gpu), Err(InventoryError::Silent { .. })));
        }
        assert!(began.elapsed() < 100 * DEADLINE);
        assert_eq!(with_timeout.inner.begun.load(Ordering::SeqCst), 1);
        assert_eq!(with_timeout.calls.under_way().until.len(), 1);
        assert_eq!(with_timeout.known_gpus().expect("as it was reported last"), [h200(0)]);

        go_on.send(()).expect("it hangs");
        over.recv_timeout(TIMEOUT).expect("it returns");
        let until = Instant::now() + TIMEOUT;
        while with_timeout.gpus().is_err() {
            assert!(Instant::now() < until, "all is well again");
        }
        assert!(with_timeout.calls.under_way().silent.is_none(), "and the log says so");
        go_on.send(()).expect("it is there");
        with_timeout.processes(&gpu).expect("answers");
    }

    #[test]
    fn no_more_calls_hang_than_there_are_lanes() {
        let (with_timeout, go_on, over) = Hanging::with_timeout(DEADLINE);
        let gpu = h200(0).uuid;
        std::thread::scope(|scope| {
            let callers: Vec<_> =
                (0..4 * LANES).map(|_| scope.spawn(|| with_timeout.processes(&gpu).is_err())).collect();
            assert!(callers.into_iter().all(|caller| caller.join().expect("whole")));
        });
        assert_eq!(with_timeout.inner.begun.load(Ordering::SeqCst), LANES);
        assert_eq!(with_timeout.calls.under_way().until.len(), LANES);
        drop(go_on);
        over.recv_timeout(TIMEOUT).expect("it returns");
    }

    #[test]
    fn a_call_that_panics_is_over() {
        let (with_timeout, _go_on, _over) = Hanging::with_timeout(TIMEOUT);
        let set = with_timeout.set_compute_mode(&h200(0).uuid, ComputeMode::Default);
        assert!(matches!(set, Err(InventoryError::Driver { call: "set_compute_mode", .. })));
        assert!(with_timeout.gpus().is_ok());
    }
}
