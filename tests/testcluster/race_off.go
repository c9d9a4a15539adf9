//go:build !race

package testcluster

// RaceDetector tells whether this binary is built with the race detector, which
// changes what memory is worth: bounds are measured without it.
const RaceDetector = false
