//! Vitals of a GPU: how busy, how hot and how healthy it is.

use serde::{Deserialize, Serialize};

/// Vitals of a GPU, as NVML reported them when the GPUs were polled last, seconds ago. Each is `null` where the driver does not report it
/// of this GPU.
///
/// They are of the whole GPU: under MPS the driver attributes utilization to the server alone, so there is none of a client or a tenant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GpuVitals {
    /// Share of the time in which any kernel ran, in percent (`nvmlDeviceGetUtilizationRates`): 100 says that the GPU was never idle, not
    /// that all SMs were busy.
    pub utilization_percent: Option<u32>,
    /// Power draw of the board in watts (`nvmlDeviceGetPowerUsage`).
    pub power_watts: Option<f64>,
    /// Power limit that is enforced, in watts (`nvmlDeviceGetEnforcedPowerLimit`).
    pub power_limit_watts: Option<f64>,
    /// Temperature of the die in degrees Celsius (`nvmlDeviceGetTemperature`).
    pub temperature_celsius: Option<u32>,
    /// Temperature at which the GPU slows itself down, in degrees Celsius (`nvmlDeviceGetTemperatureThreshold`).
    pub slowdown_celsius: Option<u32>,
    /// Clock of the SMs in MHz (`nvmlDeviceGetClockInfo`).
    pub sm_clock_mhz: Option<u32>,
    /// Uncorrected ECC errors since the driver was loaded (`nvmlDeviceGetTotalEccErrors`, volatile).
    pub uncorrected_ecc_errors: Option<u64>,
    /// Reasons for which the clocks are below their highest (`nvmlDeviceGetCurrentClocksThrottleReasons`); empty if nothing holds them
    /// down. An idle GPU lowers its clocks as well, which is not among them.
    pub throttle_reasons: Option<Vec<ThrottleReason>>,
    /// Errors that the driver wrote to the kernel's log about this GPU (Xid) since the manager started, counted every twelfth poll; `null`
    /// if that log cannot be read.
    pub xids: Option<u64>,
}

/// Reason for which the clocks of a GPU are below their highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThrottleReason {
    /// An operator set lower clocks (`nvidia-smi -ac`, `-lgc`).
    ApplicationsClocksSetting,
    /// The power limit is reached.
    SwPowerCap,
    /// The hardware slowed the GPU down: it is too hot, or draws too much power.
    HwSlowdown,
    /// Another GPU of its sync boost group is slower.
    SyncBoost,
    /// The driver slows it down because it is too hot.
    SwThermalSlowdown,
    /// The hardware slows it down because it is too hot.
    HwThermalSlowdown,
    /// The power supply asked it to draw less.
    HwPowerBrakeSlowdown,
    /// The display's clock setting limits it.
    DisplayClockSetting,
}

api_words!(ThrottleReason: ApplicationsClocksSetting "applications_clocks_setting", SwPowerCap "sw_power_cap", HwSlowdown "hw_slowdown",
    SyncBoost "sync_boost", SwThermalSlowdown "sw_thermal_slowdown", HwThermalSlowdown "hw_thermal_slowdown",
    HwPowerBrakeSlowdown "hw_power_brake_slowdown", DisplayClockSetting "display_clock_setting");

impl ThrottleReason {
    /// Returns the reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::ApplicationsClocksSetting => "clocks set by an operator",
            Self::SwPowerCap => "power limit",
            Self::HwSlowdown => "hardware slowdown",
            Self::SyncBoost => "slower GPU in its sync boost group",
            Self::SwThermalSlowdown | Self::HwThermalSlowdown => "too hot",
            Self::HwPowerBrakeSlowdown => "power brake",
            Self::DisplayClockSetting => "display clocks",
        }
    }
}
