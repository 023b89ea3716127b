//! Objects to which C has opaque pointers: handles, descriptors and memory.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use spec::{Result, Status};

use crate::status::refuse;

/// The mark of a slot whose content was taken.
const TAKEN: u64 = 0;
/// How many free slots wait before the oldest of them is used again. The use of a pointer after
/// its object was freed is detected until the slot is used again, so the wait makes the detection
/// likely.
const QUARANTINE: usize = 256;

/// Memory for a `T` that is never given back to the allocator. A pointer to a slot therefore stays
/// readable for ever, and the slot's mark says whether it has content.
///
/// The mark is the first field for every `T`, so that the mark can also be read through a pointer
/// to a slot of another type.
#[repr(C)]
pub(crate) struct Slot<T> {
    mark: AtomicU64,
    content: UnsafeCell<Option<T>>,
}

// SAFETY: `get` only shares the content, which is `Sync`. `take` moves the content, which is
// `Send`, to the one thread whose compare-and-exchange changed the mark. The callers of `get_mut`
// and of `take` promise that nobody else uses the content.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

/// Free slots, oldest first.
pub(crate) type Pool<T> = Mutex<VecDeque<&'static T>>;

/// A type that C has pointers to.
pub(crate) trait Opaque: Sized + Sync + 'static {
    /// The type of the object behind the pointer.
    type Content: Send + Sync;
    /// The mark of a slot with content, different for every type.
    const MARK: u64;
    /// The name of the object in error messages.
    const WHAT: &'static str;

    fn new(slot: Slot<Self::Content>) -> Self;
    fn slot(&self) -> &Slot<Self::Content>;
    fn pool() -> &'static Pool<Self>;
}

/// Puts the content into a slot and returns the pointer for C, which is valid until [`take`].
pub(crate) fn give<T: Opaque>(content: T::Content) -> *mut T {
    let mut pool = T::pool().lock().unwrap_or_else(PoisonError::into_inner);
    let oldest = if pool.len() > QUARANTINE { pool.pop_front() } else { None };
    drop(pool);
    let Some(oldest) = oldest else {
        let slot = Slot { mark: AtomicU64::new(T::MARK), content: UnsafeCell::new(Some(content)) };
        return Box::into_raw(Box::new(T::new(slot)));
    };
    let slot = oldest.slot();
    // SAFETY: the content of every slot in the pool was taken, and this slot left the pool under
    // the pool's lock, so no other thread has it.
    unsafe { *slot.content.get() = Some(content) };
    slot.mark.store(T::MARK, Ordering::Release);
    std::ptr::from_ref(oldest).cast_mut()
}

/// The slot behind a pointer, or an error if the pointer is null or not aligned.
///
/// # Safety
/// The pointer is null or came from [`give`].
unsafe fn slot<'a, T: Opaque>(call: &'static str, pointer: *const T) -> Result<&'a T> {
    if pointer.is_null() {
        return Err(refuse(Status::NullPointer, call, T::WHAT, "a null pointer", T::WHAT));
    }
    if !pointer.is_aligned() {
        return Err(gone::<T>(call));
    }
    // SAFETY: the pointer is not null and aligned, as checked above, and the caller promises that
    // it came from `give`, whose slots are never freed.
    Ok(unsafe { &*pointer })
}

fn gone<T: Opaque>(call: &'static str) -> spec::Error {
    refuse(Status::BadParam, call, T::WHAT, "none, or closed already", "one that is open")
}

/// The object behind a pointer.
///
/// # Safety
/// The pointer is null or came from [`give`], and nobody takes the content during `'a`.
#[inline]
pub(crate) unsafe fn get<'a, T: Opaque>(
    call: &'static str,
    pointer: *const T,
) -> Result<&'a T::Content> {
    // SAFETY: the caller promises that the pointer is null or came from `give`.
    let slot = unsafe { slot(call, pointer)? }.slot();
    if slot.mark.load(Ordering::Acquire) != T::MARK {
        return Err(gone::<T>(call));
    }
    // SAFETY: the mark says that the slot has content, and the caller promises that nobody takes
    // the content during `'a`.
    unsafe { &*slot.content.get() }.as_ref().ok_or_else(|| gone::<T>(call))
}

/// The object behind a pointer, for writing.
///
/// # Safety
/// The pointer is null or came from [`give`], and nobody else uses the content during `'a`.
pub(crate) unsafe fn get_mut<'a, T: Opaque>(
    call: &'static str,
    pointer: *mut T,
) -> Result<&'a mut T::Content> {
    // SAFETY: the caller promises that the pointer is null or came from `give`.
    let slot = unsafe {
        get(call, pointer)?;
        slot(call, pointer)?.slot()
    };
    // SAFETY: `get` found content, and the caller promises that nobody else uses it.
    unsafe { &mut *slot.content.get() }.as_mut().ok_or_else(|| gone::<T>(call))
}

/// Takes the object behind a pointer. A second call for the same object is refused.
///
/// # Safety
/// The pointer is null or came from [`give`], and nobody else uses the content.
pub(crate) unsafe fn take<T: Opaque>(call: &'static str, pointer: *mut T) -> Result<T::Content> {
    // SAFETY: the caller promises that the pointer is null or came from `give`, whose slots are
    // never freed, which makes them `'static`.
    let taken: &'static T = unsafe { slot(call, pointer)? };
    let slot = taken.slot();
    let marked =
        slot.mark.compare_exchange(T::MARK, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    // SAFETY: only the one thread whose exchange succeeded gets here with `marked`, and the caller
    // promises that nobody else uses the content.
    let content = if marked { unsafe { (*slot.content.get()).take() } } else { None };
    let content = content.ok_or_else(|| gone::<T>(call))?;
    T::pool().lock().unwrap_or_else(PoisonError::into_inner).push_back(taken);
    Ok(content)
}

/// Makes a type [`Opaque`].
macro_rules! opaque {
    ($name:ident: $content:ty, $mark:literal, $what:literal) => {
        impl $crate::opaque::Opaque for $name {
            type Content = $content;
            const MARK: u64 = u64::from_ne_bytes(*$mark);
            const WHAT: &'static str = $what;

            fn new(slot: $crate::opaque::Slot<$content>) -> Self {
                $name(slot)
            }

            fn slot(&self) -> &$crate::opaque::Slot<$content> {
                &self.0
            }

            fn pool() -> &'static $crate::opaque::Pool<Self> {
                static POOL: $crate::opaque::Pool<$name> =
                    std::sync::Mutex::new(std::collections::VecDeque::new());
                &POOL
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    };
}
pub(crate) use opaque;
