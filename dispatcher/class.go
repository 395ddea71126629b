package dispatcher

import "time"

// Class says what may be repeated at a vendor, and so decides what happens to an attempt whose outcome is not known.
// Registering an action without one is an error.
type Class int

const (
	classMissing Class = iota

	// Read changes nothing at the vendor: it is retried freely.
	Read

	// IdempotentWrite is a write that the vendor deduplicates by the delivery key within the policy's KeyWindow: it is
	// retried with the same key and the same bytes, and never sent once the window could end in mid-call.
	IdempotentWrite

	// NonIdempotentWrite is a write that the vendor does not deduplicate. It is retried only where the attempt was
	// provably unsent or the vendor said that it did not act ([Retry]); any other failure leaves it unknown, to be
	// looked up, else parked for a person.
	NonIdempotentWrite

	// IrreversibleWrite is a write that a person must approve before it is sent. An approval is good for one claim; an
	// attempt that was provably unsent waits for another approval, and any other failure leaves it unknown.
	IrreversibleWrite
)

var classNames = map[Class]string{
	Read: "read", IdempotentWrite: "idempotent_write",
	NonIdempotentWrite: "non_idempotent_write", IrreversibleWrite: "irreversible_write",
}

// String is the class's name in configuration files and logs, such as "idempotent_write".
func (c Class) String() string {
	if name, ok := classNames[c]; ok {
		return name
	}
	return "no class"
}

// ParseClass is the inverse of [Class.String]; ok is false for any other text.
func ParseClass(name string) (c Class, ok bool) {
	for class, have := range classNames {
		if have == name {
			return class, true
		}
	}
	return classMissing, false
}

// repeatable: may an attempt of unknown outcome be made again without a look-up?
func (c Class) repeatable() bool { return c == Read || c == IdempotentWrite }

// Forever is a KeyWindow that never ends: the vendor keeps keys for good. What samekey remembers is still pruned after
// its retention.
const Forever time.Duration = 1<<63 - 1
