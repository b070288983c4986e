#!/bin/bash
# The corpus of the packaged experiment `pages`: HTML of documentation packages of Debian, into workspace/input.
set -euo pipefail
mkdir -p debs/pages debs/reference workspace/input/pages workspace/input/reference
(cd debs/pages && apt-get download abs-guide anarchism apache2-doc aptitude-doc-en aptitude-doc-fr beets-doc bochs-doc \
  borgbackup-doc borgbackup2-doc c++-annotations-html cc65-doc debian-faq-de debian-faq-fr debian-history debian-policy \
  exim4-doc-html git-doc grub-legacy-doc harden-doc httrack-doc junit4-doc libcairomm-1.0-doc libcairomm-1.16-doc \
  libcommons-lang-java-doc libexif-doc libflac-doc privoxy sqlite3-doc subversion zsh-doc)
(cd debs/reference && apt-get download blends-doc debian-faq debian-kernel-handbook developers-reference funnelweb-doc \
  gitmagic hamradio-maintguide maint-guide samhain user-mode-linux-doc)
for deb in debs/*/*.deb; do
  dpkg-deb --fsys-tarfile "$deb" | tar -x -C "workspace/input/$(basename "$(dirname "$deb")")" --strip-components=3 \
    --wildcards './usr/share/*.html' './usr/share/*.htm' || true
done
find workspace/input/pages workspace/input/reference -type f ! -name '*.html' ! -name '*.htm' -delete
