"""Forms of secrets: keys of well-known providers, by prefix.

The forms come from gitleaks (version 8.30, MIT), limited to keys with a fixed prefix. Those of model
providers that gitleaks does not cover are added (decision 0073). Only distinctive forms are included, because
a word that looks random may also be a digest or a name.
"""

import re

_HEX, _WORD, _DASHED, _BASE64 = "[0-9A-Fa-f]", "[0-9A-Za-z]", r"[\w-]", r"[0-9A-Za-z+/]"
# Prefix of a key, and pattern of the rest. No minimum length exceeds that of the provider's shortest keys.
FORMS: tuple[tuple[str, str], ...] = (
    ("pk_", rf"{_WORD}{{49}}"),  # Podium
    # Models.
    ("sk-", rf"{_DASHED}{{20,}}"),  # OpenAI, Anthropic, OpenRouter, DeepSeek, LangFuse
    ("csk-", rf"{_WORD}{{40,}}"),  # Cerebras
    ("gsk_", rf"{_WORD}{{40,}}"),  # Groq
    ("xai-", rf"{_WORD}{{40,}}"),
    ("AIza", rf"{_DASHED}{{35}}"),  # Google
    ("AQ.Ab", rf"{_DASHED}{{30,}}"),
    ("ya29.", rf"{_DASHED}{{20,}}(?:\.{_DASHED}+)*"),
    ("GOCSPX-", rf"{_DASHED}{{20,}}"),
    ("1//0", rf"{_DASHED}{{40,}}"),
    ("ABSK", rf"{_BASE64}{{40,}}={{0,2}}"),  # Amazon Bedrock
    ("bedrock-api-key-", r"[\w+/=-]{20,}"),
    ("nvapi-", rf"{_DASHED}{{20,}}"),  # NVIDIA
    ("pplx-", rf"{_WORD}{{20,}}"),  # Perplexity
    ("r8_", rf"{_WORD}{{20,}}"),  # Replicate
    ("hf_", rf"{_WORD}{{30,}}"),  # Hugging Face
    ("api_org_", rf"{_WORD}{{30,}}"),
    ("fw_", rf"{_WORD}{{20,}}"),  # Fireworks
    ("tgp_v1_", rf"{_DASHED}{{20,}}"),  # Together
    ("jina_", rf"{_DASHED}{{40,}}"),
    ("pcsk_", rf"{_DASHED}{{20,}}"),  # Pinecone
    ("lsv2_", rf"{_DASHED}{{20,}}"),  # LangSmith
    ("ls__", rf"{_WORD}{{32,}}"),
    ("tvly-", rf"{_DASHED}{{16,}}"),  # Tavily
    ("fc-", rf"{_HEX}{{32}}"),  # Firecrawl
    ("pa-", rf"{_DASHED}{{43}}"),  # Voyage
    ("e2b_", rf"{_HEX}{{40}}"),
    # Clouds.
    ("AKIA", r"[0-9A-Z]{16}"),  # AWS
    ("ASIA", r"[0-9A-Z]{16}"),
    ("ABIA", r"[0-9A-Z]{16}"),
    ("ACCA", r"[0-9A-Z]{16}"),
    ("LTAI", rf"{_WORD}{{16,}}"),  # Alibaba
    ("AccountKey=", rf"{_BASE64}{{20,}}={{0,2}}"),  # Azure
    ("SharedAccessKey=", rf"{_BASE64}{{20,}}={{0,2}}"),
    ("SharedSecretValue=", rf"{_BASE64}{{20,}}={{0,2}}"),
    ("sig=", r"[0-9A-Za-z%+/]{43,}={0,2}"),
    ("dop_v1_", rf"{_HEX}{{32,}}"),  # DigitalOcean
    ("doo_v1_", rf"{_HEX}{{32,}}"),
    ("dor_v1_", rf"{_HEX}{{32,}}"),
    ("dapi", rf"{_HEX}{{32}}(?:-\d)?"),  # Databricks
    ("HRKU-", rf"{_DASHED}{{30,}}"),  # Heroku
    ("fo1_", rf"{_DASHED}{{43}}"),  # Fly.io
    ("fm1a_", rf"{_BASE64}{{60,}}={{0,3}}"),
    ("fm1r_", rf"{_BASE64}{{60,}}={{0,3}}"),
    ("fm2_", rf"{_BASE64}{{60,}}={{0,3}}"),
    ("v1.0-", rf"{_HEX}{{24}}-{_HEX}{{100,}}"),  # Cloudflare
    ("nfp_", rf"{_WORD}{{36,}}"),  # Netlify
    ("sbp_", rf"{_HEX}{{40}}"),  # Supabase
    ("sb_secret_", rf"{_DASHED}{{20,}}"),
    ("tk-us-", rf"{_DASHED}{{48}}"),  # Scalingo
    ("tskey-", rf"[a-z]{{3,20}}-{_WORD}{{8,}}-{_WORD}{{16,}}"),  # Tailscale
    ("vcp_", rf"{_WORD}{{24,}}"),  # Vercel
    ("AQVN", rf"{_DASHED}{{35,}}"),  # Yandex
    ("sha256~", rf"{_DASHED}{{43}}"),  # OpenShift
    # Code and its tools.
    ("ghp_", rf"{_WORD}{{36,}}"),  # GitHub
    ("gho_", rf"{_WORD}{{36,}}"),
    ("ghu_", rf"{_WORD}{{36,}}"),
    ("ghs_", rf"{_WORD}{{36,}}"),
    ("ghr_", rf"{_WORD}{{36,}}"),
    ("github_pat_", r"\w{22,}"),
    ("glpat-", rf"{_DASHED}{{20,}}"),  # GitLab
    ("glrt-", rf"{_DASHED}{{20,}}"),
    ("glrtr-", rf"{_DASHED}{{20,}}"),
    ("gldt-", rf"{_DASHED}{{20,}}"),
    ("glptt-", rf"{_DASHED}{{20,}}"),
    ("glcbt-", rf"{_DASHED}{{20,}}"),
    ("glft-", rf"{_DASHED}{{20,}}"),
    ("glsoat-", rf"{_DASHED}{{20,}}"),
    ("glimt-", rf"{_DASHED}{{20,}}"),
    ("glagent-", rf"{_DASHED}{{20,}}"),
    ("gloas-", rf"{_DASHED}{{20,}}"),
    ("glffct-", rf"{_DASHED}{{20,}}"),
    ("GR1348941", rf"{_DASHED}{{20,}}"),
    ("ATATT3", r"[\w=-]{60,}"),  # Atlassian
    ("ATCTT3", r"[\w=-]{60,}"),
    ("ATBB", rf"{_WORD}{{32}}"),
    ("npm_", rf"{_WORD}{{36}}"),
    ("pypi-", rf"{_DASHED}{{50,}}"),
    ("rubygems_", rf"{_HEX}{{48}}"),
    ("CLOJARS_", rf"{_WORD}{{60}}"),
    ("oy2", r"[0-9a-z]{43}"),  # NuGet
    ("AKCp", rf"{_WORD}{{69}}"),  # Artifactory
    ("cmVmd", rf"{_WORD}{{59}}"),
    ("dckr_pat_", rf"{_DASHED}{{20,}}"),  # Docker
    ("dckr_oat_", rf"{_DASHED}{{20,}}"),
    ("CCIPAT_", rf"{_DASHED}{{20,}}"),  # CircleCI
    ("CCIPRJ_", rf"{_DASHED}{{20,}}"),
    ("API-", r"[0-9A-Z]{26}"),  # Octopus Deploy
    ("PMAK-", rf"{_HEX}{{24}}-{_HEX}{{34}}"),  # Postman
    ("pul-", rf"{_HEX}{{40}}"),  # Pulumi
    ("pnu_", rf"{_WORD}{{36}}"),  # Prefect
    ("sgp_", rf"(?:(?:{_HEX}{{16}}|local)_)?{_HEX}{{40}}"),  # Sourcegraph
    ("sntrys_", r"[\w+/=-]{40,}"),  # Sentry
    ("sntryu_", rf"{_HEX}{{64}}"),
    ("sqp_", rf"{_HEX}{{40}}"),  # SonarQube
    ("squ_", rf"{_HEX}{{40}}"),
    ("sqa_", rf"{_HEX}{{40}}"),
    ("lin_api_", rf"{_WORD}{{40}}"),  # Linear
    ("lin_oauth_", rf"{_WORD}{{40}}"),
    ("ntn_", rf"{_WORD}{{40,}}"),  # Notion
    ("secret_", rf"{_WORD}{{43}}"),
    ("figd_", rf"{_DASHED}{{40,}}"),  # Figma
    (
        "pat",
        rf"(?:{_WORD}{{14}}\.{_HEX}{{64}}|-(?:na|eu)1-{_HEX}{{8}}-[0-9A-Fa-f-]{{27}})",
    ),  # Airtable, HubSpot
    ("perm:", rf"{_BASE64}{{4,}}={{0,2}}\.{_BASE64}{{2,}}={{0,2}}\.{_WORD}{{20,}}"),  # JetBrains
    ("rdme_", r"[0-9a-z]{70}"),  # ReadMe
    ("tfp_", r"[\w.=-]{40,}"),  # Typeform
    # Headers.
    ("Bearer ", r"[\w.~+/-]{20,}={0,2}"),
    ("bearer ", r"(?=[A-Za-z_.~+/-]*\d)[\w.~+/-]{20,}={0,2}"),  # in lower case, it is also an ordinary word
    ("BEARER ", r"(?=[A-Za-z_.~+/-]*\d)[\w.~+/-]{20,}={0,2}"),
    ("Basic ", rf"(?=[A-Za-z+/]*\d){_BASE64}{{16,}}={{0,2}}"),
    ("basic ", rf"(?=[A-Za-z+/]*\d)(?=[0-9a-z+/]*[A-Z]){_BASE64}{{16,}}={{0,2}}"),
    # Secret managers.
    ("hvs.", rf"{_DASHED}{{20,}}"),  # HashiCorp
    ("hvb.", rf"{_DASHED}{{20,}}"),
    ("hvr.", rf"{_DASHED}{{20,}}"),
    ("dp.pt.", rf"{_WORD}{{40,}}"),  # Doppler
    ("dp.st.", r"[\w.-]{40,}"),
    ("dp.sa.", rf"{_WORD}{{40,}}"),
    ("dp.ct.", rf"{_WORD}{{40,}}"),
    ("ops_eyJ", rf"{_BASE64}{{100,}}={{0,3}}"),  # 1Password
    ("A3-", r"[0-9A-Z]{6}-[0-9A-Z-]{11,13}-[0-9A-Z]{5}-[0-9A-Z]{5}-[0-9A-Z]{5}"),
    ("AGE-SECRET-KEY-1", r"[0-9A-Z]{58}"),
    ("p8e-", r"[0-9a-z]{32}"),  # Adobe
    # Messages.
    ("xox", rf"[abceoprs](?:-|\.xox[bp]-){_DASHED}{{10,}}"),  # Slack
    ("xapp-", rf"\d-{_DASHED}{{10,}}"),
    ("hooks.slack.com/", r"(?:services|workflows|triggers)/[\w/+-]{20,}"),
    ("hooks.slack-gov.com/", r"(?:services|workflows|triggers)/[\w/+-]{20,}"),
    ("discord.com/api/webhooks/", rf"\d+/{_DASHED}{{40,}}"),
    ("discordapp.com/api/webhooks/", rf"\d+/{_DASHED}{{40,}}"),
    ("webhook.office.com/webhookb2/", r"[\w@/-]{40,}"),  # Teams
    ("SG.", rf"{_DASHED}{{16,}}\.{_DASHED}{{16,}}"),  # SendGrid
    ("xkeysib-", rf"{_HEX}{{64}}-{_WORD}{{16}}"),  # Brevo
    ("key-", rf"{_HEX}{{32}}"),  # Mailgun
    ("pubkey-", rf"{_HEX}{{32}}"),
    ("SK", rf"{_HEX}{{32}}"),  # Twilio
    # Money and goods.
    ("sk_", rf"(?:(?:live|test|prod)_{_WORD}{{16,}}|{_WORD}{{40,}})"),  # Stripe, ElevenLabs, Novita
    ("rk_", rf"(?:live|test|prod)_{_WORD}{{16,}}"),
    ("whsec_", r"[\w+/-]{20,}={0,2}"),
    ("sq0", rf"(?:atp|csp|idp)-{_DASHED}{{22,}}"),  # Square
    ("EAAA", rf"{_DASHED}{{50,}}"),
    ("EAAM", rf"{_WORD}{{100,}}"),  # Facebook
    ("EAAC", rf"{_WORD}{{100,}}"),
    ("shpat_", rf"{_HEX}{{32}}"),  # Shopify
    ("shpca_", rf"{_HEX}{{32}}"),
    ("shppa_", rf"{_HEX}{{32}}"),
    ("shpss_", rf"{_HEX}{{32}}"),
    ("shippo_", rf"(?:live|test)_{_HEX}{{40}}"),
    ("FLWSECK", r"(?:_TEST)?-[0-9A-Za-z-]{12,}"),  # Flutterwave
    ("duffel_", r"(?:live|test)_[\w=-]{43}"),
    ("EZAK", rf"{_WORD}{{54}}"),  # EasyPost
    ("EZTK", rf"{_WORD}{{54}}"),
    ("amzn.mws.", r"[0-9a-f-]{36}"),
    ("access_token$production$", rf"[0-9a-z]{{16}}\${_HEX}{{32}}"),  # PayPal
    # Databases and measurements.
    ("pscale_", r"(?:tkn|oauth|pw)_[\w=.-]{32,}"),  # PlanetScale
    ("4b1d", rf"{_WORD}{{38}}"),  # ClickHouse
    ("dt0c01.", rf"{_WORD}{{24}}\.{_WORD}{{64}}"),  # Dynatrace
    ("glc_", rf"{_BASE64}{{32,}}={{0,2}}"),  # Grafana
    ("glsa_", rf"{_WORD}{{32}}_{_HEX}{{8}}"),
    ("eyJrIjoi", rf"{_BASE64}{{60,}}={{0,2}}"),
    ("NRAK-", rf"{_WORD}{{27}}"),  # New Relic
    ("NRII-", rf"{_DASHED}{{32}}"),
    ("NRJS-", rf"{_HEX}{{19}}"),
    ("phc_", rf"{_WORD}{{40,}}"),  # PostHog
    ("phx_", rf"{_WORD}{{40,}}"),
    ("fio-u-", r"[\w=-]{64}"),  # Frame.io
    ("ico-", rf"{_WORD}{{32}}"),  # Infracost
)
_ESCAPE = re.compile(r"\\{1,4}(?:[uU]00([0-9A-Fa-f]{2})|/)|%(?:25){0,2}([0-9A-Fa-f]{2})")
_ITEM = re.compile(r"\[[^]]*\]|\\.|\{[^}]*\}|\(\?[:=]|[-_./=:@~ ]")
"""Part of a pattern that may match a character with an escape sequence, or that contains no such part."""


def or_escaped(item: str) -> str:
    """Return a pattern for the character that `item` matches, or for an escape sequence of JSON or a URL for it.

    JSON inside a string of JSON has more backslashes, and a URL inside a URL has `%25` for `%`.
    """
    chars = [char for char in "-_.~/+=:@$ " if re.fullmatch(item, char)]
    if not chars or re.fullmatch(item, "%"):
        return item
    codes = "|".join(f"{ord(char):02x}" for char in chars)
    slash = r"|\\{1,4}+/" if "/" in chars else ""
    return rf"(?:{item}|(?i:\\{{1,4}}+u00(?:{codes})|%(?:25){{0,2}}(?:{codes})){slash})"


def rest_with_escapes(rest: str) -> str:
    """Return the pattern `rest` of `FORMS` with `or_escaped` applied to the pattern of each character."""
    return _ITEM.sub(lambda item: item[0] if item[0][0] in "{(" else or_escaped(item[0]), rest)


def unescape(begin: str) -> str:
    """Return the prefix of a key without its escape sequences."""
    return _ESCAPE.sub(lambda escape: chr(int(escape[1] or escape[2] or "2f", 16)), begin)
