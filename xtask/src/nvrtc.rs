//! NVIDIA's run-time compiler (NVRTC), loaded from the folder of its installation.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use libloading::Library;

use crate::Result;
use crate::toolchain::Toolchain;

/// The result of a compilation.
pub(crate) struct Compiled {
    pub image: Vec<u8>,
    pub log: String,
}

/// The compiler.
pub(crate) struct Nvrtc {
    nvrtc: Library,
    // NVRTC looks up its builtins by name among the loaded libraries.
    _builtins: Library,
    /// The version, such as (12, 9).
    pub version: (i32, i32),
}

type Program = *mut c_void;

impl Nvrtc {
    pub(crate) fn load(toolchain: &Toolchain) -> Result<Self> {
        let open = |name: &str| {
            let path = toolchain.libraries.join(name);
            // SAFETY: loading NVIDIA's library runs only its own initialisers.
            unsafe { Library::new(&path) }.map_err(|e| format!("{}: {e}", path.display()))
        };
        let builtins = open("libnvrtc-builtins.so.12.9")?;
        let library = open("libnvrtc.so.12")?;
        let mut nvrtc = Nvrtc { nvrtc: library, _builtins: builtins, version: (0, 0) };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the signature is nvrtcVersion's; both arguments have room for an int.
        nvrtc.check(unsafe {
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
                nvrtc.symbol(c"nvrtcVersion")?;
            version(&mut major, &mut minor)
        })?;
        nvrtc.version = (major, minor);
        Ok(nvrtc)
    }

    /// A function of the library.
    ///
    /// # Safety
    /// `F` must be the signature of the function `name`.
    unsafe fn symbol<F: Copy>(&self, name: &CStr) -> Result<F> {
        // SAFETY: the caller promised that `F` is the signature.
        let symbol = unsafe { self.nvrtc.get::<F>(name.to_bytes_with_nul()) };
        symbol.map(|s| *s).map_err(|e| format!("{}: {e}", name.to_string_lossy()))
    }

    fn check(&self, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the signature is nvrtcGetErrorString's, which returns a static
        // string for any code.
        let text = unsafe {
            let text: unsafe extern "C" fn(c_int) -> *const c_char =
                self.symbol(c"nvrtcGetErrorString")?;
            CStr::from_ptr(text(code))
        };
        Err(format!("NVRTC: {}", text.to_string_lossy()))
    }

    /// Compiles one source to machine code (`sass`) or to PTX.
    pub(crate) fn compile(
        &self,
        name: &str,
        source: &[u8],
        options: &[String],
        sass: bool,
    ) -> Result<Compiled> {
        let zero = |_| "a zero byte in a source or option".to_owned();
        let file = CString::new(format!("{name}.cu")).map_err(zero)?;
        let source = CString::new(source).map_err(zero)?;
        let options: Vec<CString> = options
            .iter()
            .map(|o| CString::new(o.as_str()).map_err(zero))
            .collect::<Result<_>>()?;
        let options: Vec<_> = options.iter().map(|o| o.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        // SAFETY: the signature is nvrtcCreateProgram's; all strings end with a
        // zero, and there are no extra headers.
        self.check(unsafe {
            let create: unsafe extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                *const *const c_char,
                *const *const c_char,
            ) -> c_int = self.symbol(c"nvrtcCreateProgram")?;
            create(&mut program, source.as_ptr(), file.as_ptr(), 0, ptr::null(), ptr::null())
        })?;
        // SAFETY: the signature is nvrtcCompileProgram's, and the options outlive the call.
        let compiled = self.check(unsafe {
            let compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int =
                self.symbol(c"nvrtcCompileProgram")?;
            compile(program, options.len() as c_int, options.as_ptr())
        });
        let log = self.text(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog")?;
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
        compiled.map_err(|e| format!("{name}.cu: {e}\n{log}"))?;
        let image = if sass {
            self.text(program, c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN")?
        } else {
            self.text(program, c"nvrtcGetPTXSize", c"nvrtcGetPTX")?
        };
        // SAFETY: the signature is nvrtcDestroyProgram's, and the program is destroyed once.
        self.check(unsafe {
            let destroy: unsafe extern "C" fn(*mut Program) -> c_int =
                self.symbol(c"nvrtcDestroyProgram")?;
            destroy(&mut program)
        })?;
        Ok(Compiled { image, log })
    }

    /// The bytes that a getter of NVRTC returns. `size` names the function for their length,
    /// `get` the function that copies them.
    fn text(&self, program: Program, size: &CStr, get: &CStr) -> Result<Vec<u8>> {
        let mut len = 0usize;
        // SAFETY: every size getter has this signature.
        self.check(unsafe {
            let size: unsafe extern "C" fn(Program, *mut usize) -> c_int = self.symbol(size)?;
            size(program, &mut len)
        })?;
        let mut bytes = vec![0u8; len];
        // SAFETY: every getter has this signature and writes `len` bytes.
        self.check(unsafe {
            let get: unsafe extern "C" fn(Program, *mut c_char) -> c_int = self.symbol(get)?;
            get(program, bytes.as_mut_ptr().cast())
        })?;
        Ok(bytes)
    }
}
