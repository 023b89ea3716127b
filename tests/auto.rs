//! The device that `auto` opens. This test needs a process of its own, because a loaded driver
//! stays loaded.

use spec::{Device, Handle};

/// `auto` opens a GPU or the CPU. If there is no GPU, looking for a GPU must not load the driver
/// of a software renderer, which would keep its memory for the life of the process.
#[test]
fn auto_is_a_gpu_or_the_cpu() {
    let mut reasons = Vec::new();
    let handle = Handle::choose(|reason| reasons.push(reason.to_string())).unwrap();
    assert!(!handle.info().software, "auto took {handle:?}: {reasons:?}");
    assert_eq!(handle.info().warning(), None);
    if handle.device() == Device::CPU {
        assert!(reasons.iter().any(|reason| reason.starts_with("wgpu")), "{reasons:?}");
        let loaded = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let has_gpu = std::fs::read_dir("/dev/dri").is_ok_and(|files| files.count() > 0);
        assert!(has_gpu || !loaded.contains("libvulkan"), "a driver was loaded: {reasons:?}");
    }
    // A software renderer can be opened by name, and a warning says what it is.
    for info in spec::devices().into_iter().filter_map(|listing| listing.devices.ok()).flatten() {
        let named: Handle = info.device.to_string().parse().unwrap();
        assert_eq!(named.info().warning().is_some(), named.info().software);
    }
}
