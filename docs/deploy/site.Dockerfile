# The course's website, built and served: see site.md. Built from the root of the repository:
#   docker build --file docs/deploy/site.Dockerfile --tag lstm-on-many-gpus-site .
FROM python:3.12-slim AS builder

WORKDIR /opt/course
COPY pyproject.toml constraints.txt README.md CONTRIBUTING.md CHANGELOG.md LICENSE ./
COPY course_lib course_lib
COPY notebooks notebooks
COPY exercises exercises
COPY solutions solutions
COPY tests tests
COPY docs docs
# The website imports the library to describe it: torch without CUDA is enough.
RUN PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu \
    pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt --editable ".[site]"
ARG COURSE_REPOSITORY=""
RUN COURSE_REPOSITORY="$COURSE_REPOSITORY" python docs/build.py --publish

# Pages, and a server that serves files and nothing else, as a user who is not root.
FROM nginxinc/nginx-unprivileged:stable-alpine
COPY --from=builder /opt/course/build/site /usr/share/nginx/html
EXPOSE 8080
