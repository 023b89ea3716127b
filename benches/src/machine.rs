//! The machine on which the benchmarks run.

use std::time::Instant;

use crate::report::{Host, Load};
use sysinfo::{
    CpuRefreshKind, MemoryRefreshKind, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System,
};

/// This machine: its processor, usable cores, memory and operating system.
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

/// Measures how busy the processor is during a run.
pub(super) struct Watch {
    system: System,
    average_before: f64,
    start: Instant,
    own_cpu_s: f64,
}

impl Watch {
    /// Starts measuring.
    pub(super) fn start() -> Self {
        let mut system = System::new();
        system.refresh_cpu_usage();
        let own_cpu_s = own_cpu_s(&mut system);
        let average_before = System::load_average().one;
        Watch { system, average_before, start: Instant::now(), own_cpu_s }
    }

    /// The processor time used since the start. `None` if the time since the start is
    /// too short for the system's own counters.
    pub(super) fn load(mut self) -> Option<Load> {
        let wall_s = self.start.elapsed().as_secs_f64();
        let own_cpu_s = own_cpu_s(&mut self.system) - self.own_cpu_s;
        self.system.refresh_cpu_usage();
        let cores = self.system.cpus().len() as f64;
        let all_cpu_s = f64::from(self.system.global_cpu_usage()) / 100.0 * cores * wall_s;
        let average_before = self.average_before;
        (wall_s > 2.0 * sysinfo::MINIMUM_CPU_UPDATE_INTERVAL.as_secs_f64()).then_some(Load {
            average_before,
            wall_s,
            own_cpu_s,
            all_cpu_s,
        })
    }
}

/// Seconds of processor time that this process has used so far, on all cores.
fn own_cpu_s(system: &mut System) -> f64 {
    let Ok(id) = sysinfo::get_current_pid() else { return 0.0 };
    let what = ProcessRefreshKind::nothing().with_cpu();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[id]), false, what);
    system.process(id).map_or(0.0, |process| process.accumulated_cpu_time() as f64 / 1e3)
}

/// Bytes of main memory that are available, if the system tells.
pub(super) fn free_memory() -> Option<u64> {
    let ram = MemoryRefreshKind::nothing().with_ram();
    let system = System::new_with_specifics(RefreshKind::nothing().with_memory(ram));
    Some(system.available_memory()).filter(|bytes| *bytes > 0)
}

/// Today's date in UTC, such as `2026-01-31`.
pub(super) fn today() -> String {
    time::OffsetDateTime::now_utc().date().to_string()
}

/// The present clocks of a GPU and its driver's version, as `nvidia-smi` reports them.
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
        // Not every machine has nvidia-smi.
        _ => Vec::new(),
    }
}
