-- MLflow's database is made by the image; Prefect's beside it. Run once, on an empty volume.
CREATE DATABASE prefect;
