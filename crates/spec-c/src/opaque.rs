//! What C holds by a pointer that it cannot look behind.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use spec::{Result, Status};

use crate::status::refuse;

/// What marks a place whose content was taken.
const TAKEN: u64 = 0;
/// How many places rest before the first of them is used again, so that a pointer
/// that is used too long is most likely seen.
const RESTING: usize = 256;

/// A place for a `T` that is never given back to the allocator: a pointer to it
/// stays good to look at, and says whether there is anything.
///
/// The mark comes first for every `T`, so that a pointer to another kind of place has one
/// to look at too.
#[repr(C)]
pub(crate) struct Place<T> {
    mark: AtomicU64,
    content: UnsafeCell<Option<T>>,
}

// SAFETY: the content is only shared (`get`) or taken by the one who changed the
// mark (`take`), as with a lock.
unsafe impl<T: Send + Sync> Sync for Place<T> {}

/// Places that are free, oldest first.
pub(crate) type Pool<T> = Mutex<VecDeque<&'static T>>;

/// A type that C has pointers to.
pub(crate) trait Opaque: Sized + Sync + 'static {
    /// What is behind the pointer.
    type Content: Send + Sync;
    /// What marks a place with content; no other type has the same.
    const MARK: u64;
    /// What it is, in words.
    const WHAT: &'static str;

    fn new(place: Place<Self::Content>) -> Self;
    fn place(&self) -> &Place<Self::Content>;
    fn pool() -> &'static Pool<Self>;
}

/// A pointer to this content, until [`take`].
pub(crate) fn give<T: Opaque>(content: T::Content) -> *mut T {
    let mut pool = T::pool().lock().unwrap_or_else(PoisonError::into_inner);
    let rested = if pool.len() > RESTING { pool.pop_front() } else { None };
    drop(pool);
    let Some(rested) = rested else {
        let place =
            Place { mark: AtomicU64::new(T::MARK), content: UnsafeCell::new(Some(content)) };
        return Box::into_raw(Box::new(T::new(place)));
    };
    let place = rested.place();
    // SAFETY: places in the pool have been taken, and this one has just left it.
    unsafe { *place.content.get() = Some(content) };
    place.mark.store(T::MARK, Ordering::Release);
    std::ptr::from_ref(rested).cast_mut()
}

/// The place behind a pointer, if it may be one.
unsafe fn place<'a, T: Opaque>(call: &'static str, pointer: *const T) -> Result<&'a T> {
    if pointer.is_null() {
        return Err(refuse(Status::NullPointer, call, T::WHAT, "a null pointer", T::WHAT));
    }
    if !pointer.is_aligned() {
        return Err(gone::<T>(call));
    }
    // SAFETY: not null, aligned, and by the caller's word what `give` gave, whose
    // memory stays.
    Ok(unsafe { &*pointer })
}

fn gone<T: Opaque>(call: &'static str) -> spec::Error {
    refuse(Status::BadParam, call, T::WHAT, "none, or closed already", "one that is open")
}

/// What is behind a pointer.
///
/// # Safety
/// The pointer is null or came from [`give`], and nobody takes the content meanwhile.
#[inline]
pub(crate) unsafe fn get<'a, T: Opaque>(
    call: &'static str,
    pointer: *const T,
) -> Result<&'a T::Content> {
    // SAFETY: the caller's.
    let place = unsafe { place(call, pointer)? }.place();
    if place.mark.load(Ordering::Acquire) != T::MARK {
        return Err(gone::<T>(call));
    }
    // SAFETY: marked, so it is there, and nobody takes it meanwhile.
    unsafe { &*place.content.get() }.as_ref().ok_or_else(|| gone::<T>(call))
}

/// What is behind a pointer, to be changed.
///
/// # Safety
/// The pointer is null or came from [`give`], and nobody else uses the content as long
/// as `'a`.
pub(crate) unsafe fn get_mut<'a, T: Opaque>(
    call: &'static str,
    pointer: *mut T,
) -> Result<&'a mut T::Content> {
    // SAFETY: the caller's.
    let place = unsafe {
        get(call, pointer)?;
        place(call, pointer)?.place()
    };
    // SAFETY: it is there, and nobody else uses it.
    unsafe { &mut *place.content.get() }.as_mut().ok_or_else(|| gone::<T>(call))
}

/// Takes what is behind a pointer, once.
///
/// # Safety
/// The pointer is null or came from [`give`], and nobody uses the content meanwhile.
pub(crate) unsafe fn take<T: Opaque>(call: &'static str, pointer: *mut T) -> Result<T::Content> {
    // SAFETY: the caller's. What `give` gave is never freed.
    let taken: &'static T = unsafe { place(call, pointer)? };
    let place = taken.place();
    let marked =
        place.mark.compare_exchange(T::MARK, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    // SAFETY: whoever changes the mark is alone with the content.
    let content = if marked { unsafe { (*place.content.get()).take() } } else { None };
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

            fn new(place: $crate::opaque::Place<$content>) -> Self {
                $name(place)
            }

            fn place(&self) -> &$crate::opaque::Place<$content> {
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
