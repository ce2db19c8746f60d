//! Opcodes. Numbers are per queue kind: 0x01 is "create submission queue" on the admin queue
//! and "write" on others.

/// Admin commands. Base figure 138.
pub mod admin {
    /// Delete I/O submission queue.
    pub const DELETE_SQ: u8 = 0x00;
    /// Create I/O submission queue.
    pub const CREATE_SQ: u8 = 0x01;
    /// Get log page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O completion queue.
    pub const DELETE_CQ: u8 = 0x04;
    /// Create I/O completion queue.
    pub const CREATE_CQ: u8 = 0x05;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous event request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Doorbell buffer config.
    pub const DOORBELL_BUFFER: u8 = 0x7c;
}

/// Commands of the NVM command set. NVM figure 20.
pub mod nvm {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// Feature identifiers. Base figure 317.
pub mod feature {
    /// Number of queues.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Interrupt coalescing.
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// Volatile write cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Asynchronous event configuration.
    pub const ASYNC_EVENT_CONFIG: u8 = 0x0b;
}

/// What an identify command asks for ("Controller or Namespace Structure"). Base figure 273.
pub mod cns {
    /// Identify namespace, of the NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// Identify controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespace identifiers.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace identification descriptors.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
}
