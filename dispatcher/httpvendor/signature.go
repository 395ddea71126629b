package httpvendor

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samekey/samekey/internal/webhook"
)

// Signature is a form in which calls are signed, with the secrets of the destination or of the stored endpoint. All are
// HMAC-SHA256, but for the ed25519 signatures of the form "standard".
type Signature struct {
	// Form is one of
	//
	//	"standard"  Standard Webhooks: webhook-timestamp and webhook-signature, over id, time and body. Default
	//	"github"    as GitHub signs: X-Hub-Signature-256: sha256=HEX, over the body
	//	"stripe"    as Stripe signs: X-Webhook-Signature: t=TIME,v1=HEX, over time and body
	//	"hmac"      over the body, in Header, as Encoding and Prefix say
	//
	// "standard" and "stripe" carry a signature for each secret. "github" and "hmac" have room for one, by the first
	// secret that can sign in this form, which is the new one while a secret is replaced: let the receiver accept both
	// secrets before you put the new one in front. Only "standard" and "stripe" sign a time, so only they let a receiver
	// refuse a copy of an old call.
	Form string

	// Header is the header of the signature. "hmac" requires it, and "standard" has two of its own.
	Header string

	// Encoding is "hex", the default, or "base64". Only "hmac" has it.
	Encoding string

	// Prefix precedes the signature, such as "sha256=". Only "hmac" has it. Default: none.
	Prefix string
}

// The names of forms.
const (
	formStandard = "standard"
	formGitHub   = "github"
	formStripe   = "stripe"
	formHMAC     = "hmac"
)

// normal returns s with its defaults.
func (s Signature) normal() Signature {
	switch s.Form {
	case "":
		s.Form = formStandard
	case formGitHub:
		s.Header, s.Prefix = cmp.Or(s.Header, "X-Hub-Signature-256"), "sha256="
	case formStripe:
		s.Header = cmp.Or(s.Header, "X-Webhook-Signature")
	}
	s.Header = http.CanonicalHeaderKey(s.Header)
	return s
}

// headers returns the canonical names of the headers that a normal form sets.
func (s Signature) headers() []string {
	if s.Form == formStandard {
		return []string{"Webhook-Signature", "Webhook-Timestamp"}
	}
	return []string{s.Header}
}

// check reports what is wrong with a form as it was written.
func (s Signature) check(m mistakes) {
	switch s.Form {
	case "", formStandard:
		if s.Header != "" {
			m.add("Header", "not allowed: the form standard sets webhook-signature and webhook-timestamp")
		}
	case formGitHub, formStripe, formHMAC:
		if s.Form == formHMAC && s.Header == "" {
			m.add("Header", "missing: name the header of the signature")
		} else if err := checkHeader(s.normal().Header, ""); err != nil {
			m.add("Header", "%v", err)
		}
	default:
		m.add("Form", "%.40q is not one of standard, github, stripe, hmac", s.Form)
		return
	}
	if s.Encoding != "" && s.Encoding != "hex" && s.Encoding != "base64" {
		m.add("Encoding", "%.40q is not one of hex, base64", s.Encoding)
	}
	if s.Form != formHMAC && s.Encoding != "" {
		m.add("Encoding", "not allowed: only the form hmac has a choice")
	}
	if s.Form != formHMAC && s.Prefix != "" {
		m.add("Prefix", "not allowed: only the form hmac has a choice")
	} else if checkHeader("X-Signature", s.Prefix) != nil {
		m.add("Prefix", "has a control character")
	}
}

// signer signs calls in each of its forms.
type signer struct {
	forms    []Signature   // normal
	standard []webhook.Key // sign in the form standard
	texts    [][]byte      // keys of the other forms: the secrets as they are written
}

// newSigner reads secrets for normal forms. It also returns what is secret in them. The error contains nothing of them.
// A secret signs in each form that it fits, so that the secrets of two forms can stand side by side while a receiver
// moves from one to the other. Without secrets there is no signer.
func newSigner(forms []Signature, secrets []string) (s *signer, secret []string, err error) {
	if len(secrets) == 0 {
		return nil, nil, nil
	}
	s = &signer{forms: forms}
	standard := slices.ContainsFunc(forms, func(f Signature) bool { return f.Form == formStandard })
	other := slices.ContainsFunc(forms, func(f Signature) bool { return f.Form != formStandard })
	for i, text := range secrets {
		key, notStandard := webhook.StandardKey(text)
		notText := checkTextSecret(text)
		switch {
		case standard && notStandard != nil && (!other || notText != nil || strings.HasPrefix(text, webhook.SecretPrefix)):
			return nil, nil, fmt.Errorf("number %d %w", i+1, notStandard)
		case !standard && notText != nil:
			return nil, nil, fmt.Errorf("number %d %w", i+1, notText)
		}
		if standard && notStandard == nil {
			s.standard = append(s.standard, key)
		}
		if other && notText == nil {
			s.texts = append(s.texts, []byte(text))
		}
		bare := strings.TrimPrefix(strings.TrimPrefix(text, webhook.SecretPrefix), webhook.PrivatePrefix)
		secret = append(secret, bare)
	}
	switch {
	case standard && s.standard == nil:
		return nil, nil, errors.New("none signs in the form standard: add one that is whsec_ and the base64 of 24 to 64 bytes")
	case other && s.texts == nil:
		return nil, nil, errors.New("whsk_ keys sign in the form standard only: add a secret for the other forms")
	}
	return s, secret, nil
}

// checkTextSecret returns an error for a secret that cannot be the key of the forms that take any text.
func checkTextSecret(secret string) error {
	switch {
	case secret == "":
		return errors.New("is empty")
	case strings.HasPrefix(secret, webhook.PrivatePrefix):
		return errors.New("starts with whsk_, which is an ed25519 private key: it signs in the form standard only")
	}
	return webhook.CheckText(secret)
}

func (s *signer) sign(header http.Header, id string, at time.Time, body []byte) {
	stamp := strconv.FormatInt(at.Unix(), 10)
	for _, form := range s.forms {
		switch form.Form {
		case formStandard:
			message := slices.Concat([]byte(id+"."+stamp+"."), body)
			signatures := make([]string, len(s.standard))
			for i, key := range s.standard {
				signatures[i] = key.Sign(message)
			}
			header.Set("Webhook-Timestamp", stamp)
			header.Set("Webhook-Signature", strings.Join(signatures, " "))
		case formStripe:
			message := slices.Concat([]byte(stamp+"."), body)
			value := "t=" + stamp
			for _, key := range s.texts {
				value += ",v1=" + hex.EncodeToString(webhook.MAC(key, message))
			}
			header.Set(form.Header, value)
		default:
			mac := webhook.MAC(s.texts[0], body)
			if form.Encoding == "base64" {
				header.Set(form.Header, form.Prefix+base64.StdEncoding.EncodeToString(mac))
			} else {
				header.Set(form.Header, form.Prefix+hex.EncodeToString(mac))
			}
		}
	}
}
