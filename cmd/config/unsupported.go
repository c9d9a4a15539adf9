package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A foreignOption is an option of etcd that Hawser does not have. It is known
// by name so that the operator reads why, instead of "unknown flag".
type foreignOption struct {
	name string
	// reason completes "<name>: ...".
	reason string
	// accepted are the values that ask for nothing beyond what Hawser does.
	accepted []string
	// ignored: the option tunes a part of etcd that does not exist here, so any
	// value is harmless. It is taken with a warning.
	ignored bool
	isBool  bool
}

const (
	noTLS       = "TLS is not supported yet"
	noCluster   = "clusters of several nodes are not supported yet"
	noDiscovery = "discovery is not supported yet"
	noAuth      = "authentication is not supported yet"
	noTracing   = "distributed tracing is not supported yet"
	noRotation  = "log rotation is not supported; rotate from outside"
	noGateway   = "the JSON gateway is not supported yet"
	noPart      = "has no effect: Hawser does not have this part of etcd"
)

var foreignOptions = slices.Concat(
	foreign(noTLS, "", "cert-file", "key-file", "client-cert-file", "client-key-file", "client-crl-file",
		"client-cert-allowed-hostname", "trusted-ca-file", "cipher-suites", "tls-max-version",
		"peer-cert-file", "peer-key-file", "peer-client-cert-file", "peer-client-key-file", "peer-trusted-ca-file",
		"peer-crl-file", "peer-cert-allowed-cn", "peer-cert-allowed-hostname"),
	foreignBool(noTLS, false, "client-cert-auth", "auto-tls", "peer-client-cert-auth", "peer-auto-tls", "peer-skip-client-san-verification"),
	foreign(noTLS, "TLS1.2", "tls-min-version"),
	foreign(noTLS, "1", "self-signed-cert-validity"),

	foreign(noCluster, "new", "initial-cluster-state"),
	foreign(noCluster, "1", "max-learners"),
	foreignBool(noCluster, true, "strict-reconfig-check", "pre-vote", "initial-election-tick-advance"),
	foreignBool("making a new cluster of old data is not supported yet", false, "force-new-cluster"),
	foreign("periodic comparison of replicas is not supported yet", "0|0s", "corrupt-check-time"),
	foreign(noDiscovery, "", "discovery-endpoints", "discovery-token", "discovery-dial-timeout", "discovery-request-timeout",
		"discovery-keepalive-time", "discovery-keepalive-timeout", "discovery-cert", "discovery-key", "discovery-cacert",
		"discovery-user", "discovery-password", "discovery-srv", "discovery-srv-name"),
	foreign(noDiscovery, "exit", "discovery-fallback"),
	foreignBool(noDiscovery, true, "discovery-insecure-transport"),
	foreignBool(noDiscovery, false, "discovery-insecure-skip-tls-verify"),

	foreign(noAuth, "simple", "auth-token"),
	foreign(noAuth, "10", "bcrypt-cost"),
	foreign(noAuth, "300", "auth-token-ttl"),

	foreignBool(noGateway, false, "enable-grpc-gateway"),
	foreign(noGateway, "|*", "cors", "host-whitelist"),

	foreign("a second folder is not supported: one engine holds log and data", "", "wal-dir"),
	foreignBool("locking memory is not supported yet", false, "memory-mlock"),
	foreignBool("sharing a port is not supported yet", false, "socket-reuse-port", "socket-reuse-address"),
	foreign("only zap exists", "zap", "logger"),
	foreignBool(noRotation, false, "enable-log-rotation"),
	foreign(noRotation, "", "log-rotation-config-json"),
	foreignBool(noTracing, false, "enable-distributed-tracing"),
	foreign(noTracing, "", "distributed-tracing-address", "distributed-tracing-service-name", "distributed-tracing-instance-id"),
	foreign(noTracing, "0", "distributed-tracing-sampling-rate"),

	ignored("snapshot-count", "snapshot-catchup-entries", "max-snapshots", "max-wals",
		"backend-bbolt-freelist-type", "backend-batch-interval", "backend-batch-limit",
		"bootstrap-defrag-threshold-megabytes", "raft-read-timeout", "raft-write-timeout",
		"warning-apply-duration", "compact-hash-check-time", "downgrade-check-time", "v2-deprecation"),
	[]foreignOption{{name: "feature-gates", reason: "a feature gate of etcd that is not supported"}},
)

// foreign makes options that are refused unless the value is one of accepted,
// which are separated by "|".
func foreign(reason, accepted string, names ...string) []foreignOption {
	var list []foreignOption
	for _, name := range names {
		list = append(list, foreignOption{name: name, reason: reason, accepted: strings.Split(accepted, "|")})
	}
	return list
}

func foreignBool(reason string, accepted bool, names ...string) []foreignOption {
	list := foreign(reason, strconv.FormatBool(accepted), names...)
	for i := range list {
		list[i].isBool = true
	}
	return list
}

func ignored(names ...string) []foreignOption {
	list := foreign(noPart, "", names...)
	for i := range list {
		list[i].ignored = true
	}
	return list
}

// check returns a warning to log, or the reason of the refusal.
func (o foreignOption) check(text string) (warning string, err error) {
	if o.name == "feature-gates" {
		return checkFeatureGates(text)
	}
	if o.ignored {
		return o.reason, nil
	}
	if o.isBool {
		if b, err := strconv.ParseBool(text); err == nil {
			text = strconv.FormatBool(b)
		}
	}
	if slices.Contains(o.accepted, text) {
		return "", nil
	}
	return "", fmt.Errorf("%s", o.reason)
}

// featureGates are etcd 3.7's gates. True: switching the gate on asks for
// nothing that a single node would do differently.
var featureGates = map[string]bool{
	"AllAlpha": false, "AllBeta": true,
	"StopGRPCServiceOnDefrag": false,
	// There is no other replica to compare with on a single node; checksums are
	// checked whenever data is read.
	"InitialCorruptCheck":          true,
	"CompactHashCheck":             false,
	"LeaseCheckpoint":              false,
	"LeaseCheckpointPersist":       false,
	"SetMemberLocalAddr":           false,
	"PriorityRequest":              false,
	"TxnModeWriteWithSharedBuffer": true,
	"FastLeaseKeepAlive":           true,
}

func checkFeatureGates(text string) (warning string, err error) {
	var without []string
	for _, entry := range strings.Split(text, ",") {
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
