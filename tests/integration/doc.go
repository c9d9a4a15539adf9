// Package integration tests whole nodes over real gRPC on loopback, with the
// clients that users have: histories of many clients at a time, what spans
// ranges while they are split, and the limits that keep one client from taking
// the node away from the others.
package integration
