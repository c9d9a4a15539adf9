package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A foreignOption is an option of etcd that Hawser does not have. It is known
// by name so that the operator reads why, instead of "unknown flag".
//
// The default of etcd asks for nothing and is always accepted without a word.
// What happens to another value says refused: a value that asks for something
// that Hawser does not do, above all for protection, ends the start; one that
// tunes what does not exist here, or what a single node has no use for, is taken
// with a warning.
type foreignOption struct {
	name string
	kind kind
	// accepted are the values that ask for nothing: etcd's default first, then
	// others that mean the same.
	accepted []string
	// refused: other values end the start. Else they are taken with a warning.
	refused bool
	// reason completes "--name=value: ...", for the refusal or the warning.
	reason string
}

// kind is what the text of a foreign option must be, whatever becomes of it.
type kind int

const (
	anyText kind = iota
	boolean
	number
	duration
	tokens // "simple", "jwt,sign-method=...", or nothing
)

const (
	noTLS       = "TLS is not supported yet"
	noCluster   = "clusters of several nodes are not supported yet"
	noDiscovery = "discovery is not supported yet"
	noTracing   = "distributed tracing is not supported yet"
	noRotation  = "log rotation is not supported; rotate from outside"
	noGateway   = "the JSON gateway is not supported yet"
	noPart      = "has no effect: Hawser does not have this part of etcd"
	oneNode     = "has no effect on a single node"
	noPeerPort  = "has no effect: a single node opens no peer port"
	noUse       = "has no effect: what it belongs to is switched off"
)

var foreignOptions = slices.Concat(
	refused(noTLS, anyText, "", "cert-file", "key-file", "client-cert-file", "client-key-file", "client-crl-file",
		"client-cert-allowed-hostname", "trusted-ca-file"),
	refused(noTLS, boolean, "false", "client-cert-auth", "auto-tls"),
	// These restrict TLS and switch nothing on, in etcd either.
	tuning(noUse, anyText, "", "cipher-suites", "tls-max-version"),
	tuning(noUse, anyText, "TLS1.2", "tls-min-version"),
	tuning(noUse, number, "1", "self-signed-cert-validity"),

	// Nothing goes over the peer port of a single node, so nothing lacks the
	// protection that is asked for.
	tuning(noPeerPort, anyText, "", "peer-cert-file", "peer-key-file", "peer-client-cert-file", "peer-client-key-file",
		"peer-trusted-ca-file", "peer-crl-file", "peer-cert-allowed-cn", "peer-cert-allowed-hostname"),
	tuning(noPeerPort, boolean, "false", "peer-client-cert-auth", "peer-auto-tls", "peer-skip-client-san-verification"),
	tuning(noPeerPort, duration, "5s", "raft-read-timeout", "raft-write-timeout"),

	tuning(oneNode, number, "1", "max-learners"),
	tuning(oneNode, boolean, "true", "strict-reconfig-check", "pre-vote", "initial-election-tick-advance"),
	tuning(oneNode, boolean, "false", "force-new-cluster"),
	tuning(oneNode, duration, "0s", "corrupt-check-time"),
	tuning(oneNode, duration, "1m", "compact-hash-check-time"),
	tuning(oneNode, duration, "5s", "downgrade-check-time"),
	tuning(oneNode, number, "5000", "snapshot-catchup-entries"),

	refused(noDiscovery, anyText, "", "discovery", "discovery-endpoints", "discovery-token", "discovery-srv", "discovery-srv-name"),
	tuning(noUse, anyText, "", "discovery-proxy", "discovery-cert", "discovery-key", "discovery-cacert", "discovery-user", "discovery-password"),
	tuning(noUse, duration, "2s", "discovery-dial-timeout", "discovery-keepalive-time"),
	tuning(noUse, duration, "5s", "discovery-request-timeout"),
	tuning(noUse, duration, "6s", "discovery-keepalive-timeout"),
	tuning(noUse, anyText, "exit", "discovery-fallback"),
	tuning(noUse, boolean, "true", "discovery-insecure-transport"),
	tuning(noUse, boolean, "false", "discovery-insecure-skip-tls-verify"),

	// It names the form of the tokens and switches nothing on, in etcd either: that is
	// a call, "auth enable", which fails here.
	tuning(noUse, tokens, "simple|", "auth-token"),
	tuning(noUse, number, "10", "bcrypt-cost"),
	tuning(noUse, number, "300", "auth-token-ttl"),

	// etcd's default is on, so it asks for something; but most who write it down
	// do not use the gateway, and whoever does sees at once that it is not there.
	tuning(noGateway, boolean, "false", "enable-grpc-gateway"),
	refused(noGateway, anyText, "*|", "cors", "host-whitelist"),

	refused("a second folder is not supported: one engine holds log and data", anyText, "", "wal-dir"),
	refused("locking memory is not supported yet", boolean, "false", "memory-mlock"),
	refused("sharing a port is not supported yet", boolean, "false", "socket-reuse-port"),
	// Listeners have SO_REUSEADDR in any case.
	tuning("", boolean, "false", "socket-reuse-address"),
	refused("only zap exists", anyText, "zap", "logger"),
	refused(noRotation, boolean, "false", "enable-log-rotation"),
	tuning(noUse, anyText, `{"maxsize": 100, "maxage": 0, "maxbackups": 0, "localtime": false, "compress": false}`, "log-rotation-config-json"),
	refused(noTracing, boolean, "false", "enable-distributed-tracing"),
	tuning(noUse, anyText, "localhost:4317", "distributed-tracing-address"),
	tuning(noUse, anyText, "etcd", "distributed-tracing-service-name"),
	tuning(noUse, anyText, "", "distributed-tracing-instance-id"),
	tuning(noUse, number, "0", "distributed-tracing-sampling-rate"),

	tuning(noPart, number, "10000", "snapshot-count"),
	tuning(noPart, number, "5", "max-snapshots", "max-wals"),
	tuning(noPart, anyText, "map", "backend-bbolt-freelist-type"),
	tuning(noPart, duration, "0s", "backend-batch-interval"),
	tuning(noPart, number, "0", "backend-batch-limit", "bootstrap-defrag-threshold-megabytes"),
	tuning(noPart, duration, "100ms", "warning-apply-duration"),
	tuning(noPart, anyText, "write-only", "v2-deprecation"),
	[]foreignOption{{name: featureGatesOption}},
)

// featureGatesOption is a list of its own: each gate has a value.
const featureGatesOption = "feature-gates"

// refused makes options that end the start unless the value is one of accepted,
// which are separated by "|".
func refused(reason string, k kind, accepted string, names ...string) []foreignOption {
	list := tuning(reason, k, accepted, names...)
	for i := range list {
		list[i].refused = true
	}
	return list
}

// tuning makes options that are taken with a warning unless the value is one of
// accepted. Without a reason there is no warning.
func tuning(reason string, k kind, accepted string, names ...string) []foreignOption {
	var list []foreignOption
	for _, name := range names {
		list = append(list, foreignOption{name: name, kind: k, accepted: strings.Split(accepted, "|"), reason: reason})
	}
	return list
}

// check returns a warning to log, or the reason of the refusal.
func (o foreignOption) check(value string) (warning string, err error) {
	if o.name == featureGatesOption {
		return checkFeatureGates(value)
	}
	value, err = o.kind.normal(value)
	if err != nil {
		return "", err
	}
	for _, a := range o.accepted {
		if a, _ = o.kind.normal(a); a == value {
			return "", nil
		}
	}
	if o.refused {
		return "", errors.New(o.reason)
	}
	return o.reason, nil
}

// normal returns the one form of a value of the kind, so that two forms of the
// same value are equal.
func (k kind) normal(value string) (string, error) {
	switch k {
	case boolean:
		b, err := strconv.ParseBool(value)
		if err != nil {
			return "", errors.New("must be true or false")
		}
		return strconv.FormatBool(b), nil
	case number:
		n, err := strconv.ParseInt(value, 0, 64)
		if err != nil || n < 0 {
			return "", errors.New("must be a whole number, 0 or more")
		}
		return strconv.FormatInt(n, 10), nil
	case duration:
		d, err := time.ParseDuration(value)
		if err != nil {
			return "", errors.New("must be a duration with a unit, such as 500ms or 10s")
		}
		return d.String(), nil
	case tokens:
		switch provider, _, _ := strings.Cut(value, ","); provider {
		case "", "simple", "jwt":
			return value, nil
		}
		return "", errors.New("must be simple, or jwt and its options")
	default:
		return value, nil
	}
}

// featureGates are etcd 3.7's gates. True: switching the gate on asks for
// nothing that a single node would do differently.
var featureGates = map[string]bool{
	"AllAlpha": false, "AllBeta": true,
	// A defrag stops nobody here.
	"StopGRPCServiceOnDefrag": true,
	// There is no other replica to compare with on a single node; checksums are
	// checked whenever data is read.
	"InitialCorruptCheck": true,
	"CompactHashCheck":    true,
	// It is about connections to other nodes.
	"SetMemberLocalAddr":           true,
	"LeaseCheckpoint":              false,
	"LeaseCheckpointPersist":       false,
	"PriorityRequest":              false,
	"TxnModeWriteWithSharedBuffer": true,
	"FastLeaseKeepAlive":           true,
}

func checkFeatureGates(list string) (warning string, err error) {
	var without []string
	for _, entry := range strings.Split(list, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		name, value, _ := strings.Cut(entry, "=")
		on, err := strconv.ParseBool(value)
		if err != nil {
			return "", fmt.Errorf("%q is not of the form Gate=true or Gate=false", entry)
		}
		harmless, known := featureGates[name]
		switch {
		case !known:
			return "", fmt.Errorf("unknown feature gate %q", name)
		case on && !harmless:
			return "", fmt.Errorf("feature gate %s is not supported yet", name)
		}
		without = append(without, name)
	}
	if len(without) == 0 {
		return "", nil
	}
	return "no effect here: " + strings.Join(without, ", "), nil
}
