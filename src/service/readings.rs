//! Readings of the host that everything on one page shares.
//!
//! A page asks for the GPUs a dozen times, and each time the driver and the database are asked, on other threads. Within
//! [`once_each`] the first answer holds: the page costs less, and all of it shows the same moment.

use std::sync::Arc;

use tokio::sync::OnceCell;

use super::Result;
use super::host::gpu_view::GpuView;
use crate::domain::gpu::Gpu;

tokio::task_local! {
    static READINGS: Arc<PageReadings>;
}

/// Readings made so far.
#[derive(Default)]
pub(super) struct PageReadings {
    pub(super) held_gpus: OnceCell<Vec<Gpu>>,
    pub(super) gpu_views: OnceCell<Vec<GpuView>>,
}

/// Does work that only reads, and for which each reading is made once.
pub async fn once_each<T>(work: impl Future<Output = T>) -> T {
    READINGS.scope(Arc::default(), work).await
}

/// Returns a reading: the one that was made before, if there is one.
pub(super) async fn once<T: Clone>(
    of: impl FnOnce(&PageReadings) -> &OnceCell<T>,
    read: impl Future<Output = Result<T>>,
) -> Result<T> {
    match READINGS.try_with(Arc::clone) {
        Ok(readings) => of(&readings).get_or_try_init(|| read).await.cloned(),
        Err(_) => read.await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::testing::h200;

    #[tokio::test]
    async fn one_page_reads_once_and_the_next_again() {
        let count = AtomicU32::new(0);
        let read = async || {
            let made = async { Ok(vec![h200(count.fetch_add(1, Ordering::Relaxed))]) };
            once(|readings| &readings.held_gpus, made).await.expect("read")[0].index.gpu
        };
        assert_eq!(once_each(async { (read().await, read().await) }).await, (0, 0));
        assert_eq!(once_each(read()).await, 1);
        assert_eq!((read().await, read().await), (2, 3), "outside a page");
    }
}
