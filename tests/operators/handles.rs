//! The promises of handles on any device: memory belongs to a queue, calls accept memory of
//! other frameworks, errors say what to do.

use spec::ops::deduplicate_topk::{Addresses, Buffers};
use spec::ops::{DeduplicateTopk, Unique, unique};
use spec::{Backend, DType, Device, ErrorKind, Handle, Status, Stream};

/// Runs `unique` with a descriptor of `handle` on buffers of `memory`.
fn distinct(handle: &Handle, memory: &Handle) -> spec::Result<Vec<u64>> {
    let operator = handle.create(&Unique::new(), &Unique::new().tensors(DType::U64, 4))?;
    let keys = memory.upload(&[7u64, 3, 7, 3])?;
    let (mut out, mut count) = (memory.upload(&[0u64; 4])?, memory.upload(&[0u64])?);
    let mut workspace = operator.workspace(memory)?;
    operator.call(&mut workspace, unique::Buffers::new(&keys, &mut out, &mut count))?;
    let count = count.to_vec()?[0] as usize;
    Ok(out.to_vec()?[..count].to_vec())
}

/// Two handles of one GPU have two queues, whose work is not ordered. So each handle refuses
/// memory of the other, including workspaces, until the memory is moved.
#[test]
fn memory_of_another_queue_is_refused() {
    for handle in crate::common::handles() {
        let other: Handle = handle.device().to_string().parse().unwrap();
        if other.queue_id() == handle.queue_id() {
            assert_eq!(handle.device(), Device::CPU);
            assert_eq!(distinct(&handle, &other).unwrap(), [3, 7]);
            continue;
        }
        let error = distinct(&handle, &other).expect_err("another handle's memory was taken");
        assert_eq!(error.status(), Status::BadParam, "{error}");
        assert!(error.to_string().contains("another handle"), "{error}");

        let operator =
            handle.create(&Unique::new(), &Unique::new().tensors(DType::U64, 4)).unwrap();
        let keys = handle.upload(&[7u64, 3, 7, 3]).unwrap();
        let mut out = handle.upload(&[0u64; 4]).unwrap();
        let mut count = handle.upload(&[0u64]).unwrap();
        let mut workspace = operator.workspace(&other).unwrap();
        let buffers = unique::Buffers::new(&keys, &mut out, &mut count);
        let error = operator.call(&mut workspace, buffers).unwrap_err();
        assert!(error.to_string().contains("`workspace`"), "{error}");
    }
}

/// After a move, a buffer belongs to the new handle. If the two devices do not share memory,
/// moving is an error.
#[test]
fn memory_moves_to_another_queue() {
    for handle in crate::common::handles() {
        let other: Handle = handle.device().to_string().parse().unwrap();
        let moved = handle.adopt(other.upload(&[5i32, -1, 5, 2]).unwrap());
        let mut indices = match moved {
            Ok(indices) => indices,
            Err(error) => {
                assert_eq!(handle.device().backend(), "wgpu", "{error}");
                assert_eq!(error.status(), Status::BadParam);
                continue;
            }
        };
        let params = DeduplicateTopk::new().mtp_step(1);
        let operator = handle.create(&params, &params.tensors(1, 4)).unwrap();
        let mut unique = handle.allocate::<i32>(4).unwrap();
        let mut workspace = operator.workspace(&handle).unwrap();
        let buffers = Buffers::new(&indices, &mut unique);
        operator.call(&mut workspace, buffers).unwrap();
        assert_eq!(unique.to_vec().unwrap(), [2, 5, -1, -1]);
        indices.write(&[1, 2, 3, 4]).unwrap();
        assert_eq!(indices.to_vec().unwrap(), [1, 2, 3, 4]);
    }
}

/// The descriptor knows dtypes and sizes, so a call needs only addresses.
#[cfg(feature = "cpu")]
#[test]
fn calls_from_addresses() {
    let cpu = Handle::cpu().unwrap();
    let params = DeduplicateTopk::new().mtp_step(2);
    let mut tensors = params.tensors(1, 3);
    let (indices, mut unique) = ([3i32, 1, 3, 2, 1, -1], [0i32; 6]);
    let operator = cpu.create(&params, &tensors).unwrap();
    let mut scratch = vec![0u8; operator.workspace_size()];
    let workspace = scratch.as_mut_ptr();
    let addresses = Addresses::new(indices.as_ptr(), unique.as_mut_ptr());
    // SAFETY: arrays and workspace are as described and nobody else uses them.
    unsafe { operator.call_at(workspace.into(), addresses, Stream::default()) }.unwrap();
    assert_eq!(unique, [1, 2, 3, -1, -1, -1]);

    tensors.counts = Some(spec::TensorDesc::new(DType::I32, [1]));
    let operator = cpu.create(&params, &tensors).unwrap();
    // SAFETY: the buffers are as described; the call refuses the null pointer before using it.
    let error =
        unsafe { operator.call_at(workspace.into(), addresses.counts(0), Stream::default()) };
    assert_eq!(error.unwrap_err().status(), Status::NullPointer);
    // SAFETY: as above.
    let error = unsafe { operator.call_at(workspace.into(), addresses, Stream::default()) };
    assert_eq!(error.unwrap_err().status(), Status::NullPointer, "described, and not given");
}

#[test]
fn buffers_are_read_in_part() {
    for handle in crate::common::handles() {
        let bytes: Vec<u8> = (0..100).collect();
        let buffer = handle.upload(&bytes).unwrap();
        for (start, len) in [(0, 0), (0, 100), (1, 5), (3, 97), (98, 2), (100, 0)] {
            let mut part = vec![0xFF; len];
            buffer.read(start, &mut part).unwrap();
            assert_eq!(part, bytes[start..start + len], "{} {start}", handle.device());
        }
        let error = buffer.read(99, &mut [0; 2]).unwrap_err();
        assert_eq!(error.status(), Status::BadTensorShape);
        let wide = handle.upload(&[1u64, 2, 3]).unwrap();
        let mut one = [0];
        wide.read(1, &mut one).unwrap();
        assert_eq!(one, [2]);
    }
}

/// A write in the middle of a buffer leaves the elements before and behind it, also where elements
/// are smaller than the words that devices copy.
#[test]
fn buffers_are_written_in_part() {
    for handle in crate::common::handles() {
        for (start, len) in [(0, 0), (0, 100), (1, 5), (3, 97), (8, 4), (98, 1), (100, 0)] {
            let mut expected: Vec<u8> = (0..100).collect();
            let mut buffer = handle.upload(&expected).unwrap();
            buffer.write_at(start, &vec![0xFF; len]).unwrap();
            expected[start..start + len].fill(0xFF);
            assert_eq!(buffer.to_vec().unwrap(), expected, "{} {start}", handle.device());
        }
        let mut wide = handle.upload(&[1i64, 2, 3]).unwrap();
        wide.write_at(1, &[-1]).unwrap();
        assert_eq!(wide.to_vec().unwrap(), [1, -1, 3]);
        for start in [2, usize::MAX] {
            let error = wide.write_at(start, &[0; 2]).unwrap_err();
            assert_eq!(error.status(), Status::BadTensorShape);
        }
    }
}

/// A descriptor may be used on another thread than the one that created it. The size of the
/// workspace is the same on every thread.
#[test]
fn a_workspace_is_as_large_on_every_thread() {
    let pool =
        |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    let keys: Vec<u64> =
        (0..1u64 << 16).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 50).collect();
    for handle in crate::common::handles() {
        let tensors = Unique::new().tensors(DType::U64, keys.len());
        for (made, used) in [(1, 7), (7, 1)] {
            let unique = pool(made).install(|| handle.create(&Unique::new(), &tensors)).unwrap();
            let size = unique.workspace_size();
            let mut workspace = handle.allocate::<u8>(size).unwrap();
            let input = handle.upload(&keys).unwrap();
            let (mut out, mut count) =
                (handle.upload(&keys).unwrap(), handle.upload(&[0u64]).unwrap());
            let buffers = unique::Buffers::new(&input, &mut out, &mut count);
            let sizes = pool(used).install(|| {
                let called = unique.call(&mut workspace, buffers);
                called.map(|()| unique.workspace_size())
            });
            assert_eq!(sizes.unwrap(), size);
            assert_eq!(count.to_vec().unwrap(), [1 << 14]);
        }
    }
}

#[test]
fn too_much_memory_is_told_apart() {
    for handle in crate::common::handles() {
        let error = handle.allocate::<u64>(usize::MAX / 8).unwrap_err();
        assert_eq!(error.status(), Status::InternalError);
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        // `fn main() -> spec::Result<()>` prints this.
        assert_eq!(format!("{error:?}"), error.to_string());
        // The device still works after the error.
        assert_eq!(handle.upload(&[1i32]).unwrap().to_vec().unwrap(), [1]);
    }
}

#[test]
fn what_is_passed_over_has_a_reason() {
    let mut reasons = Vec::new();
    let chosen = Handle::choose(|reason| reasons.push(reason.to_string())).unwrap();
    for listing in spec::devices() {
        let name = listing.backend;
        let taken = name == chosen.device().backend();
        let said = reasons.iter().any(|reason| reason.starts_with(name));
        assert!(taken || said || chosen.device().backend() == "cuda", "{name}: {reasons:?}");
    }
}
