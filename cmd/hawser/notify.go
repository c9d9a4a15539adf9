package main

import (
	"net"
	"strings"
)

// sdNotify sends one state to systemd's notification socket, so that units
// with Type=notify know when the server serves. A name that begins with "@" is
// in the abstract namespace (sd_notify(3)).
func sdNotify(socket, state string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte(state))
	if closeErr := conn.Close(); err == nil {
		err = closeErr
	}
	return err
}

// lookupEnv returns a variable of an environment as of os.Environ.
func lookupEnv(environ []string, name string) string {
	for _, kv := range environ {
		if key, value, ok := strings.Cut(kv, "="); ok && key == name {
			return value
		}
	}
	return ""
}
