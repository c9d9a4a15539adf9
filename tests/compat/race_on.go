//go:build race

package compat

// raceDetector tells whether this test binary is built with the race detector; Hawser is then built with it too.
const raceDetector = true
