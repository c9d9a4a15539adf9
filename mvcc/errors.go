package mvcc

import "errors"

// Refusals of a request, the same that etcd gives. The proxy's table maps each
// to etcd's error of the same text; nothing was changed when one is returned.
var (
	// ErrEmptyKey: a request or compare names no key (etcd/R1, etcd/P1, etcd/T2).
	ErrEmptyKey = errors.New("mvcc: key is not provided")
	// ErrInvalidSortOption: sort order or target is not one of etcd's (etcd/R2).
	ErrInvalidSortOption = errors.New("mvcc: invalid sort option")
	// ErrValueProvided: a put with ignore_value brings a value (etcd/P2).
	ErrValueProvided = errors.New("mvcc: value is provided")
	// ErrLeaseProvided: a put with ignore_lease brings a lease (etcd/P2).
	ErrLeaseProvided = errors.New("mvcc: lease is provided")
	// ErrTooManyOps: a transaction has more operations than allowed (etcd/T1).
	ErrTooManyOps = errors.New("mvcc: too many operations in txn request")
	// ErrDuplicateKey: a transaction puts a key twice, or puts and deletes it (etcd/T3).
	ErrDuplicateKey = errors.New("mvcc: duplicate key given in txn request")
	// ErrKeyNotFound: a put with ignore_value or ignore_lease finds no key (etcd/P2),
	// or an operation of a transaction is empty (etcd/T2).
	ErrKeyNotFound = errors.New("mvcc: key not found")
	// ErrLeaseNotFound: a put names a lease that does not live (etcd/P3).
	ErrLeaseNotFound = errors.New("mvcc: requested lease not found")
	// ErrCompacted: the revision asked for is forgotten or compacted (etcd/R3, etcd/T6).
	ErrCompacted = errors.New("mvcc: required revision has been compacted")
	// ErrTooLarge: the changes of the request weigh more than MaxEffectsBytes (etcd/X7).
	ErrTooLarge = errors.New("mvcc: request is too large")
	// ErrFutureRev: the revision asked for was not yet given out (etcd/R3, etcd/T6).
	ErrFutureRev = errors.New("mvcc: required revision is a future revision")
)
