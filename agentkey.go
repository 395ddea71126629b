package samekey

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// maxAgentPart bounds each part of ToolCallKey and StepKey. The longest ids in use are workflow ids of up to 1,000
// bytes. A longer text is a message or a transcript, which a retry does not reproduce byte for byte.
const maxAgentPart = 1024

// ToolCallKey returns the key value of one tool call of an agent. It is equal for equal arguments in every process,
// release and language, and differs if any argument differs (apart from a collision in 122 bits of SHA-256).
//
//   - callID is the id that the agent's harness or the model's API gave to the call.
//   - run is the id of the run or conversation. Without it, "call_0" of one run would be "call_0" of every other run.
//   - within names what else the id is unique in, outermost first. Many APIs count "call_0", "call_1" again in each
//     answer: put the turn in within. Some give the same id to two calls of one answer: use [ToolCallKeys].
//
// Save callID with the call's arguments before the call is made, and read both from there when the call is made again.
// An id that is created for each attempt makes each attempt a new operation.
//
// The call's arguments are not part of the key. A retry with other arguments gets a conflict (processed.ErrConflict,
// 422), and a second call that has the same arguments and its own id is executed.
//
// Send the value in the Idempotency-Key header as it is. The server makes it a key with [NewKey] and a scope that names
// the tenant or principal and the tool.
//
// Each part is 1 to 1,024 bytes of UTF-8 without control characters and without spaces at its ends. Any other part is
// refused with a [*KeyError], never trimmed. Its Field is "callID", "run" or "within[0]".
//
// The value is a UUID of version 8 (RFC 9562), 36 characters, made in three steps:
//
//  1. Concatenate the 19 ASCII bytes "samekey/toolcall/v1" and then, for callID, run and each of within in this order,
//     the length in bytes as a 32-bit big-endian integer, followed by the bytes.
//  2. Take the first 16 bytes of the SHA-256 digest.
//  3. Byte 6 (counted from 0) = (byte 6 AND 0x0f) OR 0x80, the version. Byte 8 = (byte 8 AND 0x3f) OR 0x80, the
//     variant.
//
// For the call id "call_1" of "run-7" within "turn-2", step 1 gives, in hexadecimal,
//
//	73616d656b65792f746f6f6c63616c6c2f7631
//	00000006 63616c6c5f31
//	00000005 72756e2d37
//	00000006 7475726e2d32
//
// and the value is 52c53ed2-6dc8-8057-82c3-f253fcf77b0b.
//
// The value is not a secret, and no data can be read from it. It is a plain hash: anyone who can guess all parts,
// such as a counter of runs, can compute the same value and confirm the guess. The scope keeps one tenant from reaching
// another tenant's keys.
func ToolCallKey(callID, run string, within ...string) (string, error) {
	values, err := ToolCallKeys([]string{callID}, run, within...)
	if err != nil {
		return "", err
	}
	return values[0], nil
}

// ToolCallKeys returns the key values of all tool calls in one answer of a model, given their ids in the order of the
// answer. The first call with an id gets the value of [ToolCallKey]. A call that repeats an id, as some models produce
// for two equal calls, gets its own value: with the same value it would count as a repetition of the first.
//
// A retry gets the same values as long as it is a retry of the same answer. Save the whole answer before the first call
// is made, and pass the ids of all its calls again, including those already executed. If the model is asked again, that
// is another answer: give it another turn in within.
//
// The second and each later call with an id is computed as in ToolCallKey, with "samekey/toolcall-again/v1" (25 bytes)
// in step 1, and with its position among the calls with that id as a last part: "2", "3" and so on, in ASCII. The
// second "call_1" of "run-7" within "turn-2" has the value 9671653b-fbe0-83b1-96cd-9ca6fbe89344.
//
// The parts obey the rules of ToolCallKey. The Field of a refused id is "callID" for a single call, else "callIDs[1]".
func ToolCallKeys(callIDs []string, run string, within ...string) ([]string, error) {
	for i, id := range callIDs {
		field := "callID"
		if len(callIDs) > 1 {
			field = fmt.Sprintf("callIDs[%d]", i)
		}
		if err := checkAgentPart(field, id); err != nil {
			return nil, err
		}
	}
	if err := checkAgentPart("run", run); err != nil {
		return nil, err
	}
	for i, part := range within {
		if err := checkAgentPart(fmt.Sprintf("within[%d]", i), part); err != nil {
			return nil, err
		}
	}
	values, seen := make([]string, len(callIDs)), map[string]int{}
	for i, id := range callIDs {
		parts := append([]string{id, run}, within...)
		if seen[id]++; seen[id] == 1 {
			values[i] = hashedUUID("samekey/toolcall/v1", parts...).String()
		} else {
			values[i] = hashedUUID("samekey/toolcall-again/v1", append(parts, strconv.Itoa(seen[id]))...).String()
		}
	}
	return values, nil
}

// StepKey returns the key value of one tool call of an agent whose harness numbers or names its steps and keeps no ids
// of calls. It is equal if run, step and tool are equal and the arguments mean the same, in every process, release and
// language, and differs otherwise (apart from a collision in 122 bits of SHA-256). It never equals a value of
// [ToolCallKey].
//
// Save run and step before the call is made, and read them from there when the call is made again. A step is a place in
// the run's plan, or its count of calls. It is not a position in the transcript, which compaction and branches move.
// Two equal calls in one step are one operation: give them two steps ("7.1", "7.2").
//
// The arguments are part of the key. If a model is asked again after a crash and words its call differently, that is a
// second operation, where [ToolCallKey] reports a conflict. Prefer ToolCallKey if calls have ids.
//
// arguments is a JSON document, compared by its meaning as in [FingerprintJSON]: white space, the order of members and
// the spelling of strings and numbers do not matter, and numbers are exact. A tool without arguments gets {}; empty
// input is an error. The size is not limited.
//
// A run, step or tool that breaks the rules of ToolCallKey is refused with a [*KeyError], whose Field is "run", "step"
// or "tool". Arguments without a single meaning are refused with a [*FingerprintError].
//
// The value has the form described at ToolCallKey, and is made in three steps:
//
//  1. Write the arguments in canonical form: no white space; an object's members in the order of their names' UTF-8
//     bytes; strings as in RFC 8785, section 3.2.2.2 (the quotation mark, the backslash and the control characters
//     below U+0020 are escaped, as \b, \t, \n, \f, \r, or else as \u00 and two lower-case digits); a number as an
//     optional "-", the digits of a whole number without leading or trailing zeros, "e", and an exponent without "+" or
//     leading zeros (10.50 is 105e-1, 1 is 1e0); every zero as 0; true, false and null as they are.
//  2. Concatenate the 15 ASCII bytes "samekey/step/v1" and then, for each of run, step, tool and the canonical
//     arguments in this order, the length in bytes as a 32-bit big-endian integer, followed by the bytes.
//  3. Continue with steps 2 and 3 of ToolCallKey.
//
// For the run "run-7", the step "3", the tool "add_credit" and the arguments {"amount": 10.50, "account": "a-1"}, the
// canonical arguments are {"account":"a-1","amount":105e-1}, step 2 gives, in hexadecimal,
//
//	73616d656b65792f737465702f7631
//	00000005 72756e2d37
//	00000001 33
//	0000000a 6164645f637265646974
//	00000021 7b226163636f756e74223a22612d31222c22616d6f756e74223a313035652d317d
//
// and the value is 6438672e-8e47-8d93-bd93-367e9b16e550.
func StepKey(run, step, tool string, arguments []byte) (string, error) {
	for _, part := range [][2]string{{"run", run}, {"step", step}, {"tool", tool}} {
		if err := checkAgentPart(part[0], part[1]); err != nil {
			return "", err
		}
	}
	if len(bytes.TrimSpace(arguments)) == 0 {
		return "", refuse(0, "the arguments are empty", "send {} for a call without arguments")
	}
	canonical, err := canonicalJSON(arguments)
	if err != nil {
		return "", err
	}
	return hashedUUID("samekey/step/v1", run, step, tool, string(canonical)).String(), nil
}

// checkAgentPart applies the rules of a scope's part, and the length limit.
func checkAgentPart(field, part string) error {
	const advice = "give the id that was saved with the call: 1 to 1,024 bytes of UTF-8 without control characters or spaces at the ends"
	if len(part) > maxAgentPart {
		return &KeyError{Field: field, Reason: fmt.Sprintf("is %d bytes long, more than %d", len(part), maxAgentPart), Do: advice}
	}
	err := checkPart(0, part)
	if invalid, ok := errors.AsType[*KeyError](err); ok {
		invalid.Field, invalid.Do = field, advice
	}
	return err
}
