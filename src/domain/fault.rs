//! Reports of a fatal GPU error: in server.log, and by the driver in the kernel's log (Xid).

use serde::{Deserialize, Serialize};

/// Characters of the driver's words that are kept.
const LONGEST_WORDS: usize = 160;

/// Reports of a fatal GPU error in server.log and in the kernel's log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GpuFaultReport {
    /// Processes that server.log names. For a memory fault it names the client that connected first, or rarely the second, whichever client
    /// faulted (88 and 6 of 94 on H200s), and for other errors none; so this is no evidence against them.
    pub named_by_mps: Vec<u32>,
    /// Errors of these GPUs in the kernel's log within two seconds of the fault.
    pub gpu_errors: Vec<GpuError>,
    /// Reason why the kernel's log could not be read; `null` if it was read.
    pub kernel_log_error: Option<String>,
}

/// An error of a GPU in the kernel's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GpuError {
    /// NVIDIA's number of the error (Xid).
    #[schema(example = 13)]
    pub xid: u32,
    /// The driver's message, without the process in it, which is the one that server.log names.
    #[schema(example = "Misaligned Address")]
    pub words: String,
    /// The address that was touched, as the driver writes it.
    #[schema(example = "0x0_dead0000")]
    pub address: Option<String>,
    /// The graphics processing cluster (GPC) of the GPU, by the driver's number.
    pub gpc: Option<u32>,
    /// The texture processing cluster (TPC) in that.
    pub tpc: Option<u32>,
    /// The streaming multiprocessor (SM) in that.
    pub sm: Option<u32>,
}

impl GpuError {
    /// Parses the text after the PCI address (recording 24); `None` for the registers, which repeat the line before.
    ///
    /// ```text
    /// 13, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Misaligned Address
    /// 13, Graphics Exception: ESR 0x518730=0x500000f 0x518734=0x0 0x518728=0x1f81fb60 0x51872c=0x1174
    /// 31, pid=1962, name=f, channel 0x0000000e, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_6 faulted @ 0x0_dead0000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE
    /// 43, pid=1562, name=nvidia-cuda-mps, channel 0x0000000a
    /// ```
    pub fn parse(report: &str) -> Option<Self> {
        let (xid, rest) = report.split_once(',').unwrap_or((report, ""));
        let xid = xid.trim().parse().ok()?;
        if rest.contains("Exception: ESR ") {
            return None;
        }
        let number = |name: &str| {
            let (_, after) = rest.split_once(name)?;
            let digits: String = after.trim_start().chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        };
        let address = rest.split_once("faulted @ ").and_then(|(_, after)| after.split(['.', ' ']).next());
        let is_about_process = |part: &&str| {
            ["pid=", "name=", "Ch ", "channel ", "intr "].iter().any(|word| part.trim().starts_with(word))
        };
        let parts: Vec<&str> = rest.split(", ").filter(|part| !is_about_process(part)).collect();
        let words = match (rest.split_once("SM "), rest.split_once("Fault is of type ")) {
            (Some((_, after)), _) if after.contains("): ") => {
                after.rsplit("): ").next().unwrap_or_default().to_owned()
            }
            (_, Some((_, kind))) => format!("memory fault of type {kind}"),
            _ => parts.join(", "),
        };
        Some(Self {
            xid,
            words: words.trim().chars().take(LONGEST_WORDS).collect(),
            address: address.map(str::to_owned),
            gpc: number("GPC"),
            tpc: number("TPC "),
            sm: number(", SM "),
        })
    }

    /// Returns true for an error of the hardware, which need not be caused by a program, by NVIDIA's documentation of the numbers.
    pub fn is_hardware(&self) -> bool {
        matches!(self.xid, 48 | 63 | 64 | 74 | 79 | 92 | 94 | 95 | 119 | 120 | 140)
    }
}

impl std::fmt::Display for GpuError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Xid {}", self.xid)?;
        if !self.words.is_empty() {
            write!(f, ": {}", self.words)?;
        }
        if let Some(address) = &self.address {
            write!(f, " at {address}")?;
        }
        let places = [("GPC", self.gpc), ("TPC", self.tpc), ("SM", self.sm)];
        let places: Vec<String> =
            places.iter().filter_map(|(name, number)| Some(format!("{name} {}", (*number)?))).collect();
        if places.is_empty() { Ok(()) } else { write!(f, " ({})", places.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(report: &str) -> Option<String> {
        GpuError::parse(report).map(|error| error.to_string())
    }

    #[test]
    fn recorded_errors_are_read_without_processes() {
        let warp = "13, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Misaligned Address";
        assert_eq!(shown(warp).as_deref(), Some("Xid 13: Misaligned Address (GPC 1, TPC 3, SM 0)"));
        let named = "13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 6, TPC 0, SM 1): Out Of Range Address";
        assert_eq!(shown(named).as_deref(), Some("Xid 13: Out Of Range Address (GPC 6, TPC 0, SM 1)"));
        assert_eq!(shown("13, Graphics Exception: ESR 0x518730=0x500000f 0x518734=0x0"), None);
        let fault = "31, pid=1962, name=f, channel 0x0000000e, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_6 \
                     faulted @ 0x0_dead0000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE";
        let read = "Xid 31: memory fault of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE at 0x0_dead0000 (GPC 1)";
        assert_eq!(shown(fault).as_deref(), Some(read));
        assert_eq!(
            shown("43, pid=1562, name=nvidia-cuda-mps, channel 0x0000000a").as_deref(),
            Some("Xid 43")
        );
        let broken = GpuError::parse("79, GPU has fallen off the bus.").expect("an error");
        assert!(broken.is_hardware() && broken.words == "GPU has fallen off the bus.", "{broken}");
        assert_eq!(shown("something else"), None);
    }
}
