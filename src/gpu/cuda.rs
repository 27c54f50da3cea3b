//! CUDA itself: only the child process of the probe comes here.
//!
//! `cuInit` makes a process a client of MPS wherever the environment says so, starts the MPS server if it is
//! the first, and may never return. That is why nothing else in this program calls it. Nothing here changes a
//! device: it makes contexts, queries, and on request allocates and frees.
//!
//! The bindings name the result codes of CUDA 13.4. A later driver that answers a code which they do not know
//! would be undefined behaviour, and a symbol that an older one lacks is a panic; in the probe's child either
//! ends as an answer of its parent.
#![allow(unsafe_code)] // The driver API is C; each block says why it is sound.

use std::ffi::{CStr, c_uint};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::time::Instant;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::domain::GpuUuid;
use crate::domain::gpu::ComputeCapability;

use super::nvml::NvmlInventory;
use super::report::{Allocation, CudaDevice, Failure, Priorities, ProbeFailure, Report, Split};
use super::{Inventory, cuda_version_text};

/// Group sizes that the splitter is queried for: a partition's chunk before Hopper and from then on, and the next
/// multiples. Nothing below a device's own chunk is requested.
const GROUP_SIZES: [u32; 4] = [4, 8, 16, 32];

const MIB: u64 = 1 << 20;

/// Starts CUDA in this process and says what it sees; `None` if nobody waits for it once `cuInit`,
/// which may wait for long, has returned.
pub(super) fn probe(allocate_up_to: Option<u64>, still_wanted: impl Fn() -> bool) -> Option<Report> {
    let mut report = Report::empty();
    report.pid = Some(std::process::id());
    report.driver_version =
        NvmlInventory::open().and_then(|nvml| nvml.driver()).ok().map(|driver| driver.driver_version);
    // SAFETY: it loads libcuda if there is one, which runs that library's initialisers and no more; this
    // process has no other thread that they could disturb.
    if !unsafe { sys::is_culib_present() } {
        report.error = Some(Failure::own(
            ProbeFailure::NoDriver,
            "libcuda.so.1 was not found. Install the NVIDIA driver (its compute libraries, such as libnvidia-compute \
             or nvidia-driver-cuda); in a container, start it with the GPUs (as with --gpus all) and the driver \
             capability \"compute\"",
        ));
        return Some(report);
    }
    let started = Instant::now();
    let initialised = result::init();
    if !still_wanted() {
        return None;
    }
    report.init_ms = Some(milliseconds(started));
    report.cuda_version = driver_api_version();
    if let Err(error) = initialised {
        report.error = Some(failure(error, "cuInit"));
        return Some(report);
    }
    match result::device::get_count() {
        Err(error) => report.error = Some(failure(error, "cuDeviceGetCount")),
        Ok(count) => {
            for ordinal in 0..u32::try_from(count).unwrap_or(0) {
                match describe(ordinal, allocate_up_to) {
                    Ok(device) => report.devices.push(device),
                    Err(error) => {
                        report.error.get_or_insert(error);
                    }
                }
            }
        }
    }
    report.mps = unanimous(report.devices.iter().map(|device| device.mps));
    Some(report)
}

/// Returns the answer that all devices share; `None` if they differ or there is none.
fn unanimous(mut answers: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let first = answers.next()??;
    answers.all(|answer| answer == Some(first)).then_some(first)
}

/// Makes a context on a device and asks it everything.
fn describe(ordinal: u32, allocate_up_to: Option<u64>) -> Result<CudaDevice, Failure> {
    let about = |call: &'static str| move |error| failure(error, &format!("{call} on device {ordinal}"));
    let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
    let device = result::device::get(number).map_err(about("cuDeviceGet"))?;
    let uuid = result::device::get_uuid(device).map_err(about("cuDeviceGetUuid"))?;
    let name = result::device::get_name(device).map_err(about("cuDeviceGetName"))?;
    let started = Instant::now();
    // SAFETY: `device` comes from cuDeviceGet. The context is released at the end of this function on every way
    // out, and no pointer into it is kept.
    let context =
        unsafe { result::primary_ctx::retain(device) }.map_err(about("cuDevicePrimaryCtxRetain"))?;
    let context_ms = milliseconds(started);
    let cuda_device = (|| {
        // SAFETY: the context was just retained and lives until the release below.
        unsafe { result::ctx::set_current(context) }.map_err(about("cuCtxSetCurrent"))?;
        let sms = attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(about("cuDeviceGetAttribute"))?;
        let compute_capability = compute_capability(device).map_err(about("cuDeviceGetAttribute"))?;
        let (free, total) = result::mem_get_info().map_err(about("cuMemGetInfo"))?;
        let (least, greatest) =
            result::stream::get_priority_range().map_err(about("cuCtxGetStreamPriorityRange"))?;
        Ok(CudaDevice {
            ordinal,
            uuid: gpu_uuid(&uuid),
            name,
            compute_capability: Some(compute_capability),
            // A driver that does not know the attribute calls it an invalid value.
            mps: attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED)
                .ok()
                .map(|value| value != 0),
            sms: u32::try_from(sms).unwrap_or(0),
            memory_free: free as u64,
            memory_total: total as u64,
            context_ms,
            priorities: Priorities { least, greatest },
            splitter: census(device, compute_capability.chunk_sms())
                .map_err(about("cuDeviceGetDevResource"))?,
            allocation: allocate_up_to.map(largest_allocation),
        })
    })();
    // SAFETY: it was retained once above. A failure to release changes nothing: the process is about to end.
    let _ = unsafe { result::primary_ctx::release(device) };
    cuda_device
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32, DriverError> {
    // SAFETY: `device` comes from cuDeviceGet; the call writes one integer of ours.
    unsafe { result::device::get_attribute(device, which) }
}

fn compute_capability(device: sys::CUdevice) -> Result<ComputeCapability, DriverError> {
    use sys::CUdevice_attribute as A;
    let number = |which| attribute(device, which).map(|value| u32::try_from(value).unwrap_or(0));
    Ok(ComputeCapability {
        major: number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        minor: number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    })
}

/// Divides the device's multiprocessors by the driver's splitter, for each of [`GROUP_SIZES`] from `least` on that the driver accepts.
fn census(device: sys::CUdevice, least: u32) -> Result<Vec<Split>, DriverError> {
    if !has_symbol(b"cuDevSmResourceSplitByCount\0") || !has_symbol(b"cuDeviceGetDevResource\0") {
        return Ok(Vec::new());
    }
    let mut all = MaybeUninit::<sys::CUdevResource>::zeroed();
    // SAFETY: `device` comes from cuDeviceGet, and the driver fills the structure that it is given. Zeros are a
    // valid value of every field of it, so it is initialised even where the driver writes only a part.
    let all = unsafe {
        sys::cuDeviceGetDevResource(
            device,
            all.as_mut_ptr(),
            sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM,
        )
        .result()?;
        all.assume_init()
    };
    Ok(GROUP_SIZES
        .into_iter()
        .filter(|size| *size >= least)
        .filter_map(|min_sms| split(&all, min_sms).ok())
        .collect())
}

/// Divides into groups of at least `min_sms`. The groups are only counted: no context is made from them.
fn split(all: &sys::CUdevResource, min_sms: u32) -> Result<Split, DriverError> {
    let mut count: c_uint = 0;
    let mut remaining = *all;
    // SAFETY: a null result asks for the number of groups; `all` is as the driver filled it, and the integer and
    // `remaining` are ours and outlive the call.
    unsafe {
        sys::cuDevSmResourceSplitByCount(null_mut(), &raw mut count, all, &raw mut remaining, 0, min_sms)
            .result()?;
    }
    let none = Split { min_sms, groups: 0, sms_per_group: 0, remaining: sm_count(all) };
    // Asked to fill in no groups, the driver would call it an error.
    if count == 0 {
        return Ok(none);
    }
    let mut groups: Vec<sys::CUdevResource> = vec![*all; count as usize];
    // SAFETY: as above, and `groups` has room for `count` entries, each an initialised structure.
    unsafe {
        sys::cuDevSmResourceSplitByCount(
            groups.as_mut_ptr(),
            &raw mut count,
            all,
            &raw mut remaining,
            0,
            min_sms,
        )
        .result()?;
    }
    groups.truncate(count as usize);
    let Some(first) = groups.first() else { return Ok(none) };
    Ok(Split { groups: count, sms_per_group: sm_count(first), remaining: sm_count(&remaining), ..none })
}

fn sm_count(resource: &sys::CUdevResource) -> u32 {
    if resource.type_ != sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM {
        return 0;
    }
    // SAFETY: the type says that `sm` is the member in use, and any bits are a valid integer.
    unsafe { resource.__bindgen_anon_1.sm.smCount }
}

fn has_symbol(name: &'static [u8]) -> bool {
    // SAFETY: the library is loaded, since cuInit was called; the symbol is resolved and not used.
    unsafe { sys::culib().get::<unsafe extern "C" fn()>(name).is_ok() }
}

/// The largest single allocation up to `requested` bytes that the current context grants, to the MiB.
///
/// The allocation is synchronous and plain: the asynchronous allocator takes memory in blocks of its own size
/// and would answer for its pool.
fn largest_allocation(requested: u64) -> Allocation {
    let mut refused_with = None;
    let mut granted = 0;
    let mut refused = requested / MIB + 1;
    let mut size = requested / MIB;
    while granted + 1 < refused {
        match allocate(size * MIB) {
            Ok(()) => granted = size,
            Err(error) => {
                refused = size;
                refused_with = Some(failure(error, &format!("cuMemAlloc of {size} MiB")));
            }
        }
        size = granted.midpoint(refused);
    }
    Allocation { asked: requested, largest: granted * MIB, refused_with }
}

fn allocate(bytes: u64) -> Result<(), DriverError> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: a context is current; the memory is freed at once and never read or written.
    unsafe { result::free_sync(result::malloc_sync(bytes)?) }
}

fn gpu_uuid(uuid: &sys::CUuuid) -> GpuUuid {
    let hex = hex::encode(uuid.bytes.map(i8::cast_unsigned));
    let text = format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    GpuUuid::parse(&text).expect("sixteen bytes in hexadecimal make a UUID")
}

/// The version of the driver's API; it can be read before `cuInit` and after it failed.
fn driver_api_version() -> Option<String> {
    let mut version = 0;
    // SAFETY: the call writes one integer of ours.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().ok()?;
    cuda_version_text(version)
}

/// Returns the time since `started`, in tenths of milliseconds: more digits would be noise.
fn milliseconds(started: Instant) -> f64 {
    (started.elapsed().as_secs_f64() * 1e4).round() / 10.0
}

/// Describes CUDA's refusal of `call`, with the remedy where one is known.
fn failure(error: DriverError, call: &str) -> Failure {
    let text = |text: Result<&CStr, DriverError>| text.ok().map(|text| text.to_string_lossy().into_owned());
    let described = text(error.error_string()).unwrap_or_else(|| "no description".to_owned());
    let name = text(error.error_name()).unwrap_or_else(|| format!("{:?}", error.0));
    let message = match remedy(error.0) {
        Some(remedy) => format!("{call}: {described}. {remedy}"),
        None => format!("{call}: {described}"),
    };
    Failure { code: Some(error.0 as u32), name, message }
}

fn remedy(code: sys::CUresult) -> Option<&'static str> {
    use sys::CUresult as C;
    Some(match code {
        C::CUDA_ERROR_NO_DEVICE => "No GPU is visible here: check CUDA_VISIBLE_DEVICES",
        C::CUDA_ERROR_STUB_LIBRARY => {
            "libcuda.so.1 is the toolkit's stub: take its directory out of LD_LIBRARY_PATH"
        }
        C::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "The kernel module and libcuda are of different versions: reboot, or load the new module"
        }
        C::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            "The device is in exclusive mode and taken, or its MPS server has all the clients that it can have"
        }
        C::CUDA_ERROR_MPS_CONNECTION_FAILED => "Is the control daemon of CUDA_MPS_PIPE_DIRECTORY alive?",
        C::CUDA_ERROR_MPS_SERVER_NOT_READY => {
            "The MPS server is starting, or waits after a fault for all affected clients to leave"
        }
        C::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED | C::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED => {
            "The MPS server has all the clients that it can have: end one"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_read_as_nvml_writes_them() {
        let bytes = [
            0x51u8, 0x44, 0x66, 0xa0, 0x8e, 0x68, 0xf8, 0x57, 0x9f, 0x73, 0xe4, 0x38, 0x01, 0x0e, 0x48, 0xcb,
        ];
        let uuid = sys::CUuuid { bytes: bytes.map(u8::cast_signed) };
        assert_eq!(gpu_uuid(&uuid).as_str(), "GPU-514466a0-8e68-f857-9f73-e438010e48cb");
    }

    #[test]
    fn devices_that_differ_give_no_answer() {
        assert_eq!(unanimous([Some(true), Some(true)].into_iter()), Some(true));
        assert_eq!(unanimous([Some(false)].into_iter()), Some(false));
        assert_eq!(unanimous([Some(true), Some(false)].into_iter()), None);
        assert_eq!(unanimous([Some(true), None].into_iter()), None);
        assert_eq!(unanimous([].into_iter()), None);
    }
}
