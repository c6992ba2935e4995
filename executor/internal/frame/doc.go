// Package frame cuts the pipes between agent and worker into frames: a 16-byte
// little-endian header (u32 body length, u8 type, u8 flags, u16 slot, u64 call
// id) and a raw body. It knows the numbers of the types and nothing of what the
// bodies mean; it must never parse a body.
package frame
