// Package proxy is the edge of a node: etcd's gRPC services, one file each, the
// admin service, and the HTTP endpoints on the same port. It knows etcd's API
// and its errors; it owns no data and decides nothing about it. What a request
// touches and how it is answered over many ranges is proxy/router's business,
// watching is proxy/watch's.
package proxy
