"""Valid and invalid TLS certificates for servers on 127.0.0.1, generated on each call."""

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
HOST = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
ELSEWHERE = x509.DNSName("elsewhere.example")


@dataclass(frozen=True)
class Certificates:
    """Certificates of servers.

    Args:
        authority: file with the certificate that clients trust.
        good: valid for 127.0.0.1.
        expired: since one day.
        elsewhere: valid for another host.
    """

    authority: Path
    good: ssl.SSLContext
    expired: ssl.SSLContext
    elsewhere: ssl.SSLContext


def make_certificates(folder: Path) -> Certificates:
    """Generate an authority and the certificates that it signs."""
    key, name = ec.generate_private_key(ec.SECP256R1()), _name("The authority of a test")
    own = _builder(name, name, key.public_key(), DAY).add_extension(x509.BasicConstraints(True, None), True)
    authority = folder / "authority.pem"
    authority.write_bytes(own.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def context(file: str, host: x509.GeneralName, lifetime: datetime.timedelta) -> ssl.SSLContext:
        server_key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name("A server"), name, server_key.public_key(), lifetime)
        builder = builder.add_extension(x509.SubjectAlternativeName([host]), False)
        pem = server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        pem += builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        (folder / file).write_bytes(pem)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(folder / file)
        return tls

    return Certificates(
        authority,
        context("good.pem", HOST, DAY),
        context("expired.pem", HOST, -DAY),
        context("elsewhere.pem", ELSEWHERE, DAY),
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: datetime.timedelta
) -> x509.CertificateBuilder:
    """Build a certificate that is valid from two days ago until `lifetime` from now."""
    now = datetime.datetime.now(datetime.UTC)
    begun = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return (
        begun.serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * DAY)
        .not_valid_after(now + lifetime)
    )
