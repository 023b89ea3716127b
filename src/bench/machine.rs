//! The machine that a run is of.

use spec_report::Host;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// This machine: processor, cores that can be used, memory and system.
pub fn host() -> Host {
    let what = RefreshKind::nothing()
        .with_cpu(CpuRefreshKind::nothing())
        .with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(what);
    let unknown = || std::env::consts::ARCH.to_owned();
    let brand = system.cpus().first().map(|cpu| cpu.brand().trim().to_owned());
    Host {
        cpu: brand.filter(|brand| !brand.is_empty()).unwrap_or_else(unknown),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: system.total_memory(),
        os: format!("{} {}", System::name().unwrap_or_default(), std::env::consts::ARCH)
            .trim()
            .to_owned(),
    }
}

/// Bytes of main memory that nobody uses, where the system says.
pub(super) fn free_memory() -> Option<u64> {
    let ram = MemoryRefreshKind::nothing().with_ram();
    let system = System::new_with_specifics(RefreshKind::nothing().with_memory(ram));
    Some(system.available_memory()).filter(|bytes| *bytes > 0)
}

/// The day in universal time, as in `2026-01-31`.
pub(super) fn today() -> String {
    time::OffsetDateTime::now_utc().date().to_string()
}

/// What NVIDIA's own tool says of a GPU now: its clocks, and the driver.
pub(super) fn nvidia_facts(index: usize) -> Vec<(String, String)> {
    let names = ["sm clock", "memory clock", "highest sm clock", "power limit", "nvidia driver"];
    let query = "clocks.sm,clocks.mem,clocks.max.sm,power.limit,driver_version";
    let output = std::process::Command::new("nvidia-smi")
        .args([&format!("--id={index}"), &format!("--query-gpu={query}"), "--format=csv,noheader"])
        .stderr(std::process::Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            let values = text.trim().split(',').map(|value| value.trim().to_owned());
            names.iter().map(|name| (*name).to_owned()).zip(values).collect()
        }
        // It need not be there.
        _ => Vec::new(),
    }
}
