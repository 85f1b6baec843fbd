#!/usr/bin/env bash
# Make the bucket, the account and the image of a project. Running it again changes nothing.
#   PROJECT=... BUCKET=... REGION=europe-west4 infra/gcp/setup.sh
set -euo pipefail
: "${PROJECT:?the Google Cloud project}" "${BUCKET:?the name of the bucket, without gs://}" "${REGION:?such as europe-west4}"

here=$(cd "$(dirname "$0")" && pwd)
account=marin-dag@$PROJECT.iam.gserviceaccount.com
image=$REGION-docker.pkg.dev/$PROJECT/marin-dag/runtime:latest

gcloud services enable --project "$PROJECT" \
  compute.googleapis.com tpu.googleapis.com storage.googleapis.com artifactregistry.googleapis.com \
  cloudbuild.googleapis.com cloudresourcemanager.googleapis.com iam.googleapis.com

# The account of the machines starts machines and slices, pulls the image, and reads and writes one bucket.
gcloud iam service-accounts describe "$account" --project "$PROJECT" >/dev/null 2>&1 ||
  gcloud iam service-accounts create marin-dag --project "$PROJECT"
for role in roles/compute.admin roles/tpu.admin roles/iam.serviceAccountUser roles/artifactregistry.reader; do
  gcloud projects add-iam-policy-binding "$PROJECT" \
    --member "serviceAccount:$account" --role "$role" --condition None --quiet >/dev/null
done

# The bucket is in the region of the slices: a byte that crosses regions costs more than storing it for a year.
gcloud storage buckets describe "gs://$BUCKET" >/dev/null 2>&1 ||
  gcloud storage buckets create "gs://$BUCKET" --project "$PROJECT" --location "$REGION" \
    --uniform-bucket-level-access --public-access-prevention --soft-delete-duration 7d
gcloud storage buckets update "gs://$BUCKET" --lifecycle-file "$here/lifecycle.json"
gcloud storage buckets add-iam-policy-binding "gs://$BUCKET" \
  --member "serviceAccount:$account" --role roles/storage.objectUser >/dev/null

gcloud artifacts repositories describe marin-dag --project "$PROJECT" --location "$REGION" >/dev/null 2>&1 ||
  gcloud artifacts repositories create marin-dag --project "$PROJECT" --location "$REGION" --repository-format docker
gcloud builds submit "$here/../.." --project "$PROJECT" --config "$here/build.yaml" --substitutions "_IMAGE=$image"
